"""Device runtimes: the only package that names one."""

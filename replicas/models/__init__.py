"""Target models: one file an architecture, one line in registry.py."""

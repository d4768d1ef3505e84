"""Which sequences run in a step, and what a step changed."""

"""Runs the plans of the scheduler on a device: verify, reject, propose."""

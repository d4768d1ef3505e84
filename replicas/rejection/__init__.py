"""Sampling from the target and accepting the drafts that agree with it."""

"""Measuring: speed as paired ratios within one run, acceptance as counts. Nothing here is a timed test."""

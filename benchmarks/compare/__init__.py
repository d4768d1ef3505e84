"""Drafting methods against each other on one target: the second seed's comparison, measured."""

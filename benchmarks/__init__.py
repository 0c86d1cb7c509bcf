"""Measurements: ratios within one run, never absolute times."""

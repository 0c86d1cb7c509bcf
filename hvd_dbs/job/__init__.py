"""A running job: its loop, rounds of decisions, journal and position."""

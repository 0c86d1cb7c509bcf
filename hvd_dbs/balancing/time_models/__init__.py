"""Rank-local models of step time; one method a file."""

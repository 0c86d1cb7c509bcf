"""Verdicts and what-if figures of live runs, beside what then happens."""

"""Ranks that come, go and die: what the launcher is asked, and where ranks meet anew."""

"""A training under way: its steps and epochs, rounds of decision, and where it goes on."""

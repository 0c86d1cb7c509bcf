"""What the network between the ranks does, seen from the ranks' own connections."""

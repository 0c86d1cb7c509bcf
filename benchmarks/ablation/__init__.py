"""What each mechanism of `adaptive` gains: each switched off alone, compared with the whole."""

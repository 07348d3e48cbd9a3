"""HTML report of all finished experiments."""

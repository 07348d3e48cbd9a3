"""Every experiment of the paper, redone beside the paper's numbers."""

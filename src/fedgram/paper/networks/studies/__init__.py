"""One module per network study: what it measures and draws."""

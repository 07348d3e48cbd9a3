"""One module per experiment on the unconstrained feature model."""

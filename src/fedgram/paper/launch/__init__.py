"""Plan, train and collect network experiments."""

"""Training: many models of one architecture as one stack, on CPU or GPU (needs the extra `train`)."""

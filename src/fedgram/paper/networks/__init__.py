"""The paper's experiments with trained networks, and those beyond it: as data, one command each."""

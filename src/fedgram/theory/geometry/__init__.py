"""Positive-semidefinite matrices, Bures-Wasserstein distance and barycenter solvers."""

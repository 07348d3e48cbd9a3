"""Regression problems split over clients: the paper's ten datasets, embedded ones, and a person's own."""

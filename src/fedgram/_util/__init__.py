"""Helpers that import nothing else of fedgram."""

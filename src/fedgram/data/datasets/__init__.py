"""Registry, cache and download of published datasets."""

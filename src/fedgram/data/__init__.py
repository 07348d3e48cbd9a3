"""Client data: problems, tables and published datasets."""

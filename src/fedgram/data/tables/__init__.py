"""Read CSV, TSV and Parquet tables through DuckDB."""

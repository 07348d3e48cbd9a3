"""Read a CSV or Parquet table through DuckDB."""

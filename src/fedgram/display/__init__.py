"""Text, tables, JSON and figures."""

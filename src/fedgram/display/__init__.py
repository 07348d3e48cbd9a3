"""Text, tables, JSON and figures for people."""

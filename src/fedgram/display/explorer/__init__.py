"""Interactive explorer: one HTML page and a notebook widget from the same JavaScript modules."""

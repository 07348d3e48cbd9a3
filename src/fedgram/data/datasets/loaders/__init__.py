"""One module per dataset."""

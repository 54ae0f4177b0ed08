"""Public data sets, one per file."""

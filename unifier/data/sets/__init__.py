"""Data sets that others use too, one a file."""

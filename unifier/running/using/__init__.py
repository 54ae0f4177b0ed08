"""A finished run put to use."""

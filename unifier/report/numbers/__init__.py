"""The report's numbers."""

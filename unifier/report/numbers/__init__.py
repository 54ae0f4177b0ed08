"""The page's numbers."""

"""The page's figures."""

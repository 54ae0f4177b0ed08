"""What runs left, as one page."""

"""Models of other libraries, and conversions of our weights for these models."""

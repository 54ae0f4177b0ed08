"""Models of the peers, and conversions of our weights to their names."""

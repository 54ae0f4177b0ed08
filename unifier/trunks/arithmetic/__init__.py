"""The type that products are computed in, and the library that computes them."""

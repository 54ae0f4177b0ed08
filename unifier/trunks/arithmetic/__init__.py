"""The number type of products, and the library that computes them."""

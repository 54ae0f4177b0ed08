"""Examples encoded once, in arrays that may be larger than memory, and kept for later runs."""

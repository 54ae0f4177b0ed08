"""Examples encoded once, in arrays that may be larger than memory, and cached for later runs."""

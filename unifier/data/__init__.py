"""Data: the contract of a source, how examples become batches, and the sets."""

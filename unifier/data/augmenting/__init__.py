"""Augmentation of training batches, and the views of an example that are averaged."""

"""Training batches changed, and the views of an example that are averaged."""

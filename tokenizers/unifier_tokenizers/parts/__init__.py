"""What tokenizers are made of."""

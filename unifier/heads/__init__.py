"""Heads: columns that a trunk has read in, a loss and an answer out."""

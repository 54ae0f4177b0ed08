"""Heads: a trunk's columns in, a loss and predictions out."""

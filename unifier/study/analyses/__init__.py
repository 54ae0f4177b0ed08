"""Analyses of trained trunks: layers, attention, similarity."""

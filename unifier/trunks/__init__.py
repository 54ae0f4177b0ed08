"""Trunks: columns in, columns out, of any modality."""

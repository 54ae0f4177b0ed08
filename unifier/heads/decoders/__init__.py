"""Translators of every kind but the transformer's."""

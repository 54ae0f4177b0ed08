"""Text decoders other than the transformer's."""

"""Data of your own: folders of pictures and sounds, pairs of texts."""

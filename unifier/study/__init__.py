"""Descriptions of what is trained and compared, and what it costs."""

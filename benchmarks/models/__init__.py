"""The peers' models, and our weights under their names."""

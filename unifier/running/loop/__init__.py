"""The training loop of a run, and its callbacks."""

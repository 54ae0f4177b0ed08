"""From an experiment's function to what a run leaves behind."""

"""The training of a run, and what happens beside its steps."""

"""Using a finished run."""

"""What tells of a finished run's scores."""

"""What is written of a finished run besides its scores."""

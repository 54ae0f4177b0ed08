"""Run a case, time its variants and write the results."""

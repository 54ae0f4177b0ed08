"""Benchmarks that compare unifier with other libraries on equal work."""

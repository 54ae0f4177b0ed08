"""Benchmarks of unifier and its peers, on equal work and in interleaved rounds."""

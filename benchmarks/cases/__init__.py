"""Benchmark cases: training and translation with equal models of unifier and of other libraries."""

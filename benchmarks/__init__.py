"""Our framework timed beside its peers, on equal work, in one interleaved run."""

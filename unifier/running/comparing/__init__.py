"""Many runs that are compared: trials, folds, searches, sweeps."""

"""How a race is run, timed and written down."""

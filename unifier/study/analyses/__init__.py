"""What a trained trunk has learned: its layers, its attention, and how like another's they are."""

"""Files of every kind, and how they come here."""

"""The report: one HTML page of what runs left."""

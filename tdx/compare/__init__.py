"""Compare two sides: align their stages, compare their values, and report what differs."""

"""The log: what the app has said, and what has happened."""

"""The Live tab: step an env and inspect every value."""

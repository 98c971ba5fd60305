"""Passes that measure something other than time: each with its own observer and rollouts."""

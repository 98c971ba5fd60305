"""Stacks: an env with its stages, whatever library they come from."""

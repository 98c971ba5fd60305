"""Rollouts by a plan: raw columns first, and what can wait over whole chunks of steps."""

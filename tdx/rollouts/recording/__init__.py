"""Record rollouts as dumps, resume them, and replay them with another chain."""

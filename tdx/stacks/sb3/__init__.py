"""Stacks of Stable-Baselines3: ``VecEnvWrapper`` chains over the wrappers in their sub-envs."""

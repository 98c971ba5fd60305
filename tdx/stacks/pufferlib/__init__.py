"""Stacks of PufferLib: its vector envs over the wrappers in their sub-envs."""

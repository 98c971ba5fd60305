"""Stacks of Gymnasium wrappers: single envs, vector envs, and the wrappers in their sub-envs."""

"""Stacks of PettingZoo: the wrappers of a parallel env, also those of SuperSuit."""

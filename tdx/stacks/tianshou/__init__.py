"""Stacks of Tianshou: wrappers of its vector envs over the wrappers in their sub-envs."""

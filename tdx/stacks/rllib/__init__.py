"""Stacks of RLlib: the connector pipelines between its envs and its modules."""

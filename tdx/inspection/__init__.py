"""Jobs that inspect envs and chains and return typed results."""

"""Jobs that look at envs and chains; each returns plain, typed results and prints nothing."""

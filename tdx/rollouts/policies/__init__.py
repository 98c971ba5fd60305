"""Policies by name: ``random``, ``zero``, ``sequence:FILE``, ``mlp:FILE``, ``module:FILE``."""

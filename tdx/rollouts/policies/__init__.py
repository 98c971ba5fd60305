"""Policies by name: ``random``, ``zero``, ``sequence:FILE``, ``mlp:FILE``, ``module:FILE``,
``sb3:FILE``, ``lerobot:FOLDER``."""

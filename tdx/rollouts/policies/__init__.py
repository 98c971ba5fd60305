"""Policies by name: ``random``, ``zero``, and those of files, folders and Python code."""

"""Layouts of results, one module per topic."""

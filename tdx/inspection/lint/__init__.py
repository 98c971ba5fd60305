"""Lint rules for chains: declaration, input, selection and execution."""

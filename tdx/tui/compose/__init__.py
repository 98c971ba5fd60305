"""Composing a chain: catalogue, chain and form."""

"""Dumps on disk: manifest, index, data and state files, and what reads and writes them."""

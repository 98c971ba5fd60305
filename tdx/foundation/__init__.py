"""Errors, keys, text, settings, serialization, files, processes: what everything else builds on."""

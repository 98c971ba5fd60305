"""Profiling of chains: time, memory, operators and device work of each part of a rollout."""

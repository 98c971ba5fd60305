"""Lint rules, one module per code family."""

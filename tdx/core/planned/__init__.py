"""Execution of a plan; :mod:`tdx.core.planned.executor` follows a rollout from call to call."""

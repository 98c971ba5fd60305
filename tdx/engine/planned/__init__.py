"""Rollouts by a plan: raw columns first, and what can wait over whole chunks of steps."""

from tdx.engine.planned.rollout import iter_rollout, rollout

__all__ = ["iter_rollout", "rollout"]

"""The plan of a chain: which stage writes and reads which version of a key, and what can wait."""

from tdx.core.plan.build import Plan, StagePlan, Version, plan_of

__all__ = ["Plan", "StagePlan", "Version", "plan_of"]

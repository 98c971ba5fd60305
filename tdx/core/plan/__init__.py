"""The plan of a chain: which stage writes and reads which version of a key, and what can wait."""

from tdx.core.plan.build import Plan, PlanStage, Version, plan_of

__all__ = ["Plan", "PlanStage", "Version", "plan_of"]

"""The plan of a chain: which stage writes and reads which version of a key, and what can wait."""

from tdx.core.plan.build import plan_of
from tdx.core.plan.model import Plan, PlanStage, Version

__all__ = ["Plan", "PlanStage", "Version", "plan_of"]

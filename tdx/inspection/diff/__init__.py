"""What differs between two pipelines: stages, specs, and the values of seeded rollouts."""

from __future__ import annotations

from tdx.inspection.diff.compare import compare
from tdx.inspection.diff.report import DiffReport, EnvChange, StageChange, ValueChange
from tdx.inspection.diff.sides import DiffSide, PipelineSide

__all__ = [
    "DiffReport",
    "DiffSide",
    "EnvChange",
    "PipelineSide",
    "StageChange",
    "ValueChange",
    "compare",
]

"""All that is to be said of a pipeline on one page."""

from __future__ import annotations

from tdx.inspection.report.contents import (
    Episode,
    Lint,
    Picture,
    PipelineReport,
    RewardCurve,
    Rollout,
)
from tdx.inspection.report.gather import gather

__all__ = [
    "Episode",
    "Lint",
    "Picture",
    "PipelineReport",
    "RewardCurve",
    "Rollout",
    "gather",
]

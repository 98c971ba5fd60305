"""The data of the self-contained HTML report on a pipeline."""

from __future__ import annotations

from tdx.inspection.report.pipeline_report import LintEntry, PipelineReport, build_report
from tdx.inspection.report.rollout import EpisodeSummary, ImagePair, RewardPlot, RolloutSummary

__all__ = [
    "EpisodeSummary",
    "ImagePair",
    "LintEntry",
    "PipelineReport",
    "RewardPlot",
    "RolloutSummary",
    "build_report",
]

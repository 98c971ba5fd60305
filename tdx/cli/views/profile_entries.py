"""JSON entries of comparisons, sweeps and advice, in addition to those of a profile."""

from __future__ import annotations

from typing import Any, NotRequired, TypedDict

from tdx.core.meter import Lane
from tdx.profiling.result import Mode
from tdx.profiling.saved import ProfileEntries
from tdx.profiling.suggestions import Agreement


class ChangeEntries(TypedDict):
    """JSON entries of a figure of two profiles; times are in µs."""

    mode: Mode
    label: str
    lane: Lane
    figure: str
    before_us: float
    after_us: float
    ratio: float | None
    noise: float
    significant: bool


class FailureEntries(ChangeEntries):
    """JSON entries of a change that exceeds a limit."""

    limit: str
    message: str


class RowKeyEntries(TypedDict):
    """JSON entries that identify a row."""

    label: str
    lane: Lane


class ComparisonEntries(TypedDict):
    """JSON entries of a comparison of two profiles."""

    failed: bool
    failures: list[FailureEntries]
    differences: list[str]
    gone: list[RowKeyEntries]
    new: list[RowKeyEntries]
    changes: list[ChangeEntries]


class BaselineEntries(ComparisonEntries):
    """JSON entries of a comparison with a baseline."""

    baseline: str


class MarginalStageEntries(TypedDict):
    """JSON entries of what a chain costs without one of its stages."""

    stage: int
    name: str
    own_us: float
    needed: str | None
    saved_us: float | None
    noise_us: float | None
    for_neighbors_us: float | None
    significant: bool


class MarginalEntries(TypedDict):
    """JSON entries of what a chain costs without each of its stages."""

    mode: Mode
    step_us: float
    error: str | None
    stages: list[MarginalStageEntries]


class TriedChangeEntries(TypedDict):
    """JSON entries of a change that was tried."""

    kind: str
    stages: list[int]
    found: str
    change: str
    chain: list[str]
    mode: Mode | None
    before_us: float | None
    after_us: float | None
    saved_us: float | None
    saved_share: float | None
    noise_us: float | None
    values: Agreement


class AdviceEntries(TypedDict):
    """JSON entries of the changes that were tried in one mode."""

    mode: Mode
    advice: list[TriedChangeEntries]
    without_gain: list[TriedChangeEntries]
    refused: list[str]
    interrupted: bool


class MeasuredEntries(ProfileEntries):
    """JSON entries of what ``tdx profile`` prints."""

    marginal: NotRequired[list[MarginalEntries]]
    advice: NotRequired[list[AdviceEntries]]
    comparison: NotRequired[BaselineEntries]


class AxisEntries(TypedDict):
    """JSON entries of an axis of a sweep."""

    name: str
    values: list[str]


class CellEntries(TypedDict):
    """JSON entries of one combination of a sweep."""

    point: dict[str, Any]
    host: str | None
    problem: str | None
    profile: ProfileEntries | None


class GrowthEntries(TypedDict):
    """JSON entries of the growth of a cost along an axis."""

    axis: str
    others: dict[str, str]
    mode: Mode
    label: str
    lane: Lane
    values: list[float]
    step_us: list[float]
    slope: float | None


class SweepEntries(TypedDict):
    """JSON entries of a sweep."""

    subject: str
    axes: list[AxisEntries]
    interrupted: bool
    cells: list[CellEntries]
    growth: list[GrowthEntries]


class ModeEstimateEntries(TypedDict):
    """JSON entries of the estimated duration of one mode."""

    mode: Mode
    steps: int
    step_us: float
    seconds: float
    calls: int
    saved_bytes: int


class EstimateEntries(TypedDict):
    """JSON entries of the estimated duration of a measurement."""

    subject: str
    seconds: float
    modes: list[ModeEstimateEntries]

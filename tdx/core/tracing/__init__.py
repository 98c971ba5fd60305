"""Traced execution: runs a chain hook by hook, and records every version and its time."""

from tdx.core.tracing.passages import Passage, list_passages
from tdx.core.tracing.recorder import Probe
from tdx.core.tracing.spec_violations import TraceChecker, TracedViolation
from tdx.core.tracing.stop_parser import parse_stop
from tdx.core.tracing.stops import (
    AllOf,
    AnyOf,
    Cancelled,
    Done,
    KeyIs,
    NotFinite,
    OutOfSpec,
    Seconds,
    Steps,
    Stop,
    StopReason,
    Truncated,
)
from tdx.core.tracing.tracer import BaseTracer, Tracer, TraceRun
from tdx.core.tracing.traces import (
    DeferredTrace,
    EpisodeSpan,
    Place,
    StageTrace,
    StepTrace,
    TraceHistory,
    ValueVersion,
)

__all__ = [
    "AllOf",
    "AnyOf",
    "BaseTracer",
    "Cancelled",
    "DeferredTrace",
    "Done",
    "EpisodeSpan",
    "KeyIs",
    "NotFinite",
    "OutOfSpec",
    "Passage",
    "Place",
    "Probe",
    "Seconds",
    "StageTrace",
    "StepTrace",
    "Steps",
    "Stop",
    "StopReason",
    "TraceChecker",
    "TraceHistory",
    "TraceRun",
    "TracedViolation",
    "Tracer",
    "Truncated",
    "ValueVersion",
    "list_passages",
    "parse_stop",
]

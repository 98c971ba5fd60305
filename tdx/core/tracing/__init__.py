"""Running a chain hook by hook, keeping every version of every key and what each hook cost."""

from tdx.core.tracing.history import EpisodeSpan, TraceHistory
from tdx.core.tracing.lies import Lie, Promises
from tdx.core.tracing.places import Place
from tdx.core.tracing.recorder import Probe
from tdx.core.tracing.stop_text import KeyIs, parse_stop
from tdx.core.tracing.stops import (
    AllOf,
    AnyOf,
    Cancelled,
    Done,
    NotFinite,
    OutOfSpec,
    Seconds,
    Steps,
    Stop,
    StopReason,
    Truncated,
)
from tdx.core.tracing.tracer import Tracer, TraceRun
from tdx.core.tracing.traces import StageTrace, StepTrace, ValueVersion

__all__ = [
    "AllOf",
    "AnyOf",
    "Cancelled",
    "Done",
    "EpisodeSpan",
    "KeyIs",
    "Lie",
    "NotFinite",
    "OutOfSpec",
    "Place",
    "Probe",
    "Promises",
    "Seconds",
    "StageTrace",
    "StepTrace",
    "Steps",
    "Stop",
    "StopReason",
    "TraceHistory",
    "TraceRun",
    "Tracer",
    "Truncated",
    "ValueVersion",
    "parse_stop",
]

"""Running a chain hook by hook, keeping every version of every key and what each hook cost."""

from tdx.engine.traced.history import EpisodeSpan, TraceHistory
from tdx.engine.traced.lies import Lie, Promises
from tdx.engine.traced.places import Place
from tdx.engine.traced.recorder import Probe
from tdx.engine.traced.stop_text import KeyIs, parse_stop
from tdx.engine.traced.stops import (
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
from tdx.engine.traced.tracer import Tracer, TraceRun
from tdx.engine.traced.traces import StageTrace, StepTrace, ValueVersion

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

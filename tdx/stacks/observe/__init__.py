"""Observe a running stack: one event per call of a level; traces, times and replays of them."""

from tdx.foundation.generators import preserved_generators
from tdx.stacks.observe.env_inside import base_key, replaced_env
from tdx.stacks.observe.events import (
    OPAQUE,
    CallRecording,
    Event,
    LevelForm,
    Method,
    RecordedMethod,
    plain_copy,
)
from tdx.stacks.observe.levels import Levels, NestedLevels, RowEntries, Slot
from tdx.stacks.observe.recorder import LastResults
from tdx.stacks.observe.replay import MAX_EVENTS, CallRecorder, CallReplay
from tdx.stacks.observe.times import check_threads, timed_levels
from tdx.stacks.observe.traces import Actor, locate, traced

__all__ = [
    "MAX_EVENTS",
    "OPAQUE",
    "Actor",
    "CallRecorder",
    "CallRecording",
    "CallReplay",
    "Event",
    "LastResults",
    "LevelForm",
    "Levels",
    "Method",
    "NestedLevels",
    "RecordedMethod",
    "RowEntries",
    "Slot",
    "base_key",
    "check_threads",
    "locate",
    "plain_copy",
    "preserved_generators",
    "replaced_env",
    "timed_levels",
    "traced",
]

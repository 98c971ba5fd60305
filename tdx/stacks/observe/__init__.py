"""Observe a running stack: one event per call of a level, recorded and replayed."""

from tdx.stacks.observe.events import (
    OPAQUE,
    Event,
    LevelForm,
    Method,
    Recording,
    is_same_plain,
    plain_copy,
)
from tdx.stacks.observe.replay import (
    MAX_EVENTS,
    Levels,
    Recorder,
    Replay,
    Slot,
    preserved_generators,
)

__all__ = [
    "MAX_EVENTS",
    "OPAQUE",
    "Event",
    "LevelForm",
    "Levels",
    "Method",
    "Recorder",
    "Recording",
    "Replay",
    "Slot",
    "is_same_plain",
    "plain_copy",
    "preserved_generators",
]

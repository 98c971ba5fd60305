"""Full garbage collections of the app, which take 100 ms and more, between key presses."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable

IDLE_SECONDS = 2.0
"""Time without a key or click after which the app counts as idle."""
INTERVAL_SECONDS = 15.0
MAX_PARTIAL_COLLECTIONS = 2_000
"""Partial collections after which a full one no longer waits; about ten minutes of typing."""
_NEVER = 10**9


class IdleCollector:
    """Collects the oldest objects when nobody waits for an answer; Python does the rest itself.

    Args:
        clock: Returns the time in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._input_time = self._collection_time = clock()

    def start(self) -> None:
        """Take over the full collections. All objects that exist now are never examined."""
        gc.freeze()
        young, middle, _ = gc.get_threshold()
        gc.set_threshold(young, middle, _NEVER)
        gc.enable()

    def note_input(self) -> None:
        """Take note of a key or click."""
        self._input_time = self._clock()

    def check(self) -> None:
        """Collect if the app is idle and the last collection was some time ago."""
        now = self._clock()
        is_idle = now - self._input_time >= IDLE_SECONDS
        is_due = now - self._collection_time >= INTERVAL_SECONDS
        if (is_idle and is_due) or gc.get_count()[2] >= MAX_PARTIAL_COLLECTIONS:
            gc.collect()
            self._collection_time = self._clock()

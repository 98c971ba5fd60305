"""Observers of calls in passes that measure something other than time."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, ClassVar, NamedTuple, TypeVar, cast
from weakref import WeakSet

import torch
from torch.autograd.profiler import profile, record_function

from tdx.core.meter import AnyFunction, Lane, Part
from tdx.foundation.torch_internals import is_profiler_enabled
from tdx.profiling.passes.device_trace import RANGE_PREFIX, parse_part_index
from tdx.profiling.result import ModeProfile

RowKey = tuple[str, Lane]
T = TypeVar("T")
U = TypeVar("U")


class Observer(ABC):
    """A meter of something other than time; see :class:`~tdx.core.meter.Meter`.

    It observes only while :meth:`recording`, in a separate rollout, as observing takes time.
    """

    records_warmup: ClassVar[bool] = False
    """Whether steps are recorded and discarded before those that count, to warm the observer up."""

    def __init__(self) -> None:
        self.parts: list[Part] = []
        """Parts with calls; other methods refer to a part by its index here."""
        self._places: dict[Part, int] = {}
        self._observed: WeakSet[Callable[..., Any]] = WeakSet()
        self._on = False

    def timed(
        self, part: Part, function: AnyFunction, steps: Callable[..., int] | None = None
    ) -> AnyFunction:
        """See :class:`~tdx.core.meter.Meter`; results are totals over all steps."""
        if function in self._observed:
            return function
        if part not in self._places:
            self._places[part] = len(self.parts)
            self.parts.append(part)
        place = self._places[part]

        def run(*args: Any, **kwargs: Any) -> Any:
            if not self._on:
                return function(*args, **kwargs)
            self._begin(place)
            try:
                return function(*args, **kwargs)
            finally:
                self._end()

        self._observed.add(run)
        return cast(AnyFunction, run)

    def in_turn(self, functions: Sequence[AnyFunction]) -> Sequence[AnyFunction]:
        return functions

    def unavailable_reason(self) -> str | None:
        """Return why it cannot observe now, as a sentence; ``None`` if it can."""
        return None

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Observe calls in the block; process-wide settings are restored afterwards."""
        with self._recorder():
            self._on = True
            try:
                yield
            finally:
                self._on = False

    def _recorder(self) -> AbstractContextManager[None]:
        """Return the context in which calls are observed."""
        return nullcontext()

    def discard(self) -> None:  # noqa: B027 - only observers that record the warm-up need it
        """Discard the observations so far; see :attr:`records_warmup`."""

    def _updated(
        self,
        uses: Mapping[RowKey, U],
        results: Mapping[int, T],
        empty: U,
        change: Callable[[U, T], U],
    ) -> dict[RowKey, U]:
        """Return the uses of rows, changed by the result of each part, by its index."""
        updated = dict(uses)
        for place, result in results.items():
            key = self.parts[place].label, self.parts[place].lane
            updated[key] = change(updated.get(key, empty), result)
        return updated

    @abstractmethod
    def add_results(self, profile: ModeProfile, steps: int) -> ModeProfile:
        """Return the profile with the observations of at least one step added."""

    @abstractmethod
    def _begin(self, place: int) -> None:
        """Called when a call of a part starts."""

    @abstractmethod
    def _end(self) -> None:
        """Called when the innermost call ends."""


MEMORY_EVENT = "[memory]"
PROFILER_BUSY = "torch's profiler is already running, so the passes that use it were skipped."


class HostEvent(NamedTuple):
    """An operator, a call of a part or a :data:`MEMORY_EVENT` on the thread of the rollout.

    ``place`` is the index of the part; -1 if it is not one. Freed bytes are negative.
    """

    name: str
    place: int
    start_ns: int
    end_ns: int
    nbytes: int = 0


class TorchProfilerObserver(Observer):
    """Runs torch's profiler with a range for each call."""

    def __init__(self, memory: bool) -> None:
        super().__init__()
        self._memory = memory
        self._open: list[Any] = []
        self.events: list[HostEvent] = []

    def unavailable_reason(self) -> str | None:
        """See :class:`Observer`; torch allows one profiler at a time."""
        return PROFILER_BUSY if is_profiler_enabled() else None

    @contextmanager
    def _recorder(self) -> Iterator[None]:
        profiler: Any = profile(profile_memory=self._memory)
        try:
            with profiler:
                yield
        finally:
            if profiler.kineto_results is not None:
                self.events += collect_host_events(profiler.kineto_results.events())

    def _range(self, name: str) -> AbstractContextManager[object]:
        """Return a context that becomes a range in the trace."""
        return record_function(name)

    def _begin(self, place: int) -> None:
        part = self.parts[place]
        opened = self._range(f"{RANGE_PREFIX}{place} {part.label} {part.lane}")
        opened.__enter__()
        self._open.append(opened)

    def _end(self) -> None:
        self._open.pop().__exit__(None, None, None)


def collect_host_events(events: Iterable[Any]) -> list[HostEvent]:
    """Return the events on the threads that parts ran on, sorted by start."""
    results, threads = [], set()
    for entry in events:
        name = entry.name()
        place = parse_part_index(name)
        if place >= 0:
            threads.add(entry.start_thread_id())
        start, nbytes = entry.start_ns(), 0
        if name == MEMORY_EVENT:
            if entry.device_type() != torch.profiler.DeviceType.CPU:
                continue
            nbytes = entry.nbytes()
        event = HostEvent(name, place, start, start + entry.duration_ns(), nbytes)
        results.append((entry.start_thread_id(), event))
    kept = [event for thread, event in results if thread in threads]
    return sorted(kept, key=lambda event: (event.start_ns, -event.end_ns))

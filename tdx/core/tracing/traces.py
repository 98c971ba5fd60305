"""Data of a trace: a step, its stages, every version of every key; and a bounded history."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from threading import Lock
from typing import Any, Literal

from tensordict import TensorDictBase
from torch import Tensor

from tdx.core.transforms import Transform
from tdx.foundation.errors import ArgumentError, KeyNotFoundError, TdxError, did_you_mean
from tdx.foundation.keys import NestedKey, format_key, normalize_key, split_key

Direction = Literal["forward", "inverse"]
Hook = Literal["reset", "step"]
Kind = Literal["env", "stage", "policy", "given", "kept"]


@dataclass(frozen=True, slots=True, eq=False)
class ValueVersion:
    """One version of a key, with the value that it had then.

    Args:
        key: The key.
        number: 0 for an input of the chain (from the env inside, the policy or the caller), then
            1, 2, … for what its stages write.
        lane: ``forward`` for the output of the env, ``inverse`` for its input.
        value: The tensor ``[*B, ...]``, not copied; a list of rows if they differ in shape.
        in_place: True if it overwrote the version before it, in the same memory.
        lost: True if a later in-place write changed ``value`` before a copy was kept.
    """

    key: NestedKey
    number: int
    lane: Direction
    value: Any
    in_place: bool = False
    lost: bool = False

    @property
    def name(self) -> str:
        """Display name: ``observation@2``."""
        return f"{format_key(self.key)}@{self.number}"

    def __repr__(self) -> str:
        return self.name


Versions = Mapping[NestedKey, ValueVersion]


@dataclass(slots=True, eq=False)
class Place:
    """A place that is called: a stage, the env inside, the policy.

    Args:
        kind: Which of them.
        index: Index of the stage, from 0; -1 for anything else.
        name: Class name.
        stage: The transform of a stage.
        reads: Keys that it declares to read, by direction.
        writes: Keys that it declares to write, by direction. ``None``: any.
        pure: True if it is known not to write in place, so that its inputs need no copy.
    """

    kind: Kind
    index: int
    name: str
    stage: Transform | None
    reads: dict[Direction, tuple[NestedKey, ...]]
    writes: dict[Direction, frozenset[NestedKey] | None]
    pure: bool

    def declares(self, key: NestedKey, direction: Direction) -> bool:
        """Return True if a key, or a group that contains it, is declared to be written."""
        declared = self.writes[direction]
        if declared is None or key in declared:
            return True
        parts = split_key(key)
        return any(normalize_key(parts[:length]) in declared for length in range(1, len(parts)))


@dataclass(frozen=True, slots=True, eq=False)
class StageTrace:
    """One call of a hook of a stage, with its time.

    Args:
        kind: ``env`` for the env inside, ``stage`` or ``policy``; ``given`` for input of the
            caller, and ``kept`` for the rows that a partial reset does not change.
        index: Index of the stage, from 0; nested envs continue the count. -1 for anything else.
        name: Class name of the transform, env or policy.
        direction: ``forward`` from the env to the policy, ``inverse`` from the policy to the env.
        hook: ``reset`` or ``step``.
        time_ns: Duration of the hook, including the stages and envs that it steps itself.
        read: Versions of the keys that it declares to read.
        written: Versions that it wrote, by key.
        dropped: Keys that it removed.
        undeclared: Keys of ``written`` that are not among its out-keys.
        overwritten: Keys that it returned in the memory of their value of the previous step.
        calls: Number of its steps, per sub-env: more than one inside a stage that skips frames. In
            a reset, its resets and steps: more than one inside a stage that acts after a reset.
    """

    kind: Kind
    index: int
    name: str
    direction: Direction
    hook: Hook
    time_ns: int
    read: tuple[ValueVersion, ...] = ()
    written: Versions = field(default_factory=dict)
    dropped: tuple[NestedKey, ...] = ()
    undeclared: tuple[NestedKey, ...] = ()
    overwritten: tuple[NestedKey, ...] = ()
    calls: int = 1

    @property
    def place(self) -> str:
        """Display name: ``0 StepCounter``."""
        return f"{self.index} {self.name}" if self.kind == "stage" else self.name


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class StepTrace:
    """Trace of one reset or step.

    Args:
        index: Number of this trace, from 0.
        step: Number of steps before it.
        episode: Number of resets, including partial ones, before the one that it belongs to.
        phase: ``reset`` or ``step``.
        tensordict: Result of ``env.reset()`` or ``env.step()``, ``[*B]``; the input of a trace
            with an error.
        stages: Calls of the hooks, in order.
        given: Versions before the first hook.
        time_ns: Duration without the overhead of tracing.
        error: What the last of ``stages`` raised, if it raised.
    """

    index: int
    step: int
    episode: int
    phase: Hook
    tensordict: TensorDictBase
    stages: tuple[StageTrace, ...]
    given: Versions
    time_ns: int
    error: TdxError | None = None

    @property
    def env_tensordict(self) -> TensorDictBase:
        """Output of the chain, ``[*B]``: ``next`` of a step, or the result of a reset."""
        after = self.tensordict.get("next", None) if self.phase == "step" else None
        return self.tensordict if after is None else after

    @property
    def unattributed_ns(self) -> int:
        """Time outside of all hooks."""
        return self.time_ns - sum(stage.time_ns for stage in self.stages)

    def after(self, index: int, direction: Direction = "forward") -> dict[NestedKey, ValueVersion]:
        """Return the versions after a stage; -1 for the env inside.

        Args:
            index: Index of the stage.
            direction: ``forward`` for the output of the stage; ``inverse`` for the output of its
                inverse, where -1 is the input of the env inside.
        """
        current = dict(self.given) if direction == "inverse" else {}
        last = max((stage.index for stage in self.stages), default=-1)
        for stage in self.stages:
            if stage.direction != direction:
                continue
            later = stage.index > index if direction == "forward" else stage.index < index
            if stage.kind in ("env", "stage") and later:
                break
            if stage.kind == "kept" and index < last:
                continue
            current.update(stage.written)
            for key in stage.dropped:
                current.pop(key, None)
        return current

    def versions(self) -> Iterator[ValueVersion]:
        """Iterate over all versions of this step, in order."""
        yield from self.given.values()
        for stage in self.stages:
            yield from stage.written.values()

    def version(self, name: str, direction: Direction = "forward") -> ValueVersion:
        """Return a version by name.

        Args:
            name: Name such as ``"observation@2"``; a key without a number is its last version.
            direction: Direction of the version.

        Raises:
            KeyNotFoundError: Unknown version.
        """
        versions = {
            version.name: version for version in self.versions() if version.lane == direction
        }
        last = {format_key(version.key): version for version in versions.values()}
        known = {**last, **versions}
        if name not in known:
            hint = did_you_mean(name, known, otherwise=f"the versions are {', '.join(versions)}")
            raise KeyNotFoundError(f"no version {name!r} in step {self.step}", hint=hint)
        return known[name]

    def writer(self, key: NestedKey, direction: Direction = "forward") -> StageTrace | None:
        """Return the call that wrote the last version of a key, if any did."""
        for stage in reversed(self.stages):
            if stage.direction == direction and key in stage.written:
                return stage
        return None

    @property
    def nbytes(self) -> int:
        """Memory of its values in bytes; memory shared between traces counts in each of them."""
        storages = {}
        for version in self.versions():
            values = version.value if isinstance(version.value, list) else [version.value]
            for value in values:
                if isinstance(value, Tensor):
                    storage = value.untyped_storage()
                    storages[storage.data_ptr()] = storage.nbytes()
        return sum(storages.values())


_set = object.__setattr__
_DEFERRED = ("tensordict", "stages", "given", "time_ns", "error")


class DeferredTrace(StepTrace):
    """A trace of which some fields are built when one of them is first read."""

    __slots__ = ("_build",)
    _build: Callable[[], object] | None

    @classmethod
    def of(cls, build: Callable[[], object], **known: Any) -> DeferredTrace:
        """Return a trace that is not built yet.

        Args:
            build: Returns an object that has the other fields.
            known: Fields of the trace.
        """
        trace = object.__new__(cls)
        _set(trace, "_build", build)
        for name, value in known.items():
            _set(trace, name, value)
        return trace

    def number(self, index: int, step: int, episode: int) -> None:
        """Set what the tracer knows about the trace."""
        _set(self, "index", index)
        _set(self, "step", step)
        _set(self, "episode", episode)

    def __getattr__(self, name: str) -> Any:
        """Build the trace; called for fields that have no value yet."""
        if name not in _DEFERRED:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        build = self._build
        if build is not None:
            built = build()
            for field_name in _DEFERRED:
                if hasattr(built, field_name):
                    _set(self, field_name, getattr(built, field_name))
            _set(self, "_build", None)
        return object.__getattribute__(self, name)


@dataclass(frozen=True, slots=True)
class EpisodeSpan:
    """The part of an episode that is in a history.

    Args:
        episode: Number of the episode.
        first: Index of its first trace in the history.
        last: Index of its last trace.
        steps: Number of its steps in the history.
    """

    episode: int
    first: int
    last: int
    steps: int


class TraceHistory:
    """Keeps the latest traces and forgets the oldest, by number and by memory.

    The newest trace is always kept, however large it is. One thread may add traces (of one
    tracer) while others read.

    Args:
        max_traces: Maximum number of resets and steps.
        max_bytes: Maximum memory of their tensors. Memory that two traces share is counted in
            both, so the true use is never higher.

    Raises:
        ArgumentError: A limit is below 1.

    Example:
        >>> from tdx import PendulumEnv, TraceHistory, Tracer
        >>> history = TraceHistory(max_traces=3)
        >>> _ = Tracer(PendulumEnv(), history=history).run(10)
        >>> [trace.step for trace in history], history.forgotten
        ([7, 8, 9], 8)
    """

    def __init__(self, max_traces: int = 10_000, max_bytes: int = 256 * 2**20) -> None:
        for name, limit in (("max_traces", max_traces), ("max_bytes", max_bytes)):
            if limit < 1:
                raise ArgumentError(
                    f"{name} must be at least 1, got {limit}", hint="keep at least one step"
                )
        self.max_traces, self.max_bytes = max_traces, max_bytes
        self.forgotten = 0
        self._held: deque[tuple[StepTrace, int]] = deque()
        self._episodes: dict[int, EpisodeSpan] = {}
        self._lock = Lock()
        self._nbytes = 0

    @property
    def nbytes(self) -> int:
        """Memory of all traces in bytes."""
        return self._nbytes

    def append(self, trace: StepTrace) -> None:
        """Add a trace."""
        size = trace.nbytes
        with self._lock:
            self._held.append((trace, size))
            self._nbytes += size
            known = self._episodes.get(trace.episode)
            first, steps = (trace.index, 0) if known is None else (known.first, known.steps)
            self._episodes[trace.episode] = EpisodeSpan(
                trace.episode, first, trace.index, steps + (trace.phase == "step")
            )
            while len(self._held) > 1 and (
                len(self._held) > self.max_traces or self._nbytes > self.max_bytes
            ):
                self._forget()

    def _forget(self) -> None:
        trace, size = self._held.popleft()
        self._nbytes -= size
        self.forgotten += 1
        span = self._episodes[trace.episode]
        if span.last == trace.index:
            del self._episodes[trace.episode]
        else:
            steps = span.steps - (trace.phase == "step")
            self._episodes[trace.episode] = replace(span, first=trace.index + 1, steps=steps)

    def clear(self) -> None:
        """Remove all traces."""
        with self._lock:
            self.forgotten += len(self._held)
            self._held.clear()
            self._episodes.clear()
            self._nbytes = 0

    def find(self, index: int) -> StepTrace | None:
        """Return the trace with this ``index``; ``None`` if it is removed or does not exist yet."""
        with self._lock:
            place = index - self._held[0][0].index if self._held else -1
            return self._held[place][0] if 0 <= place < len(self._held) else None

    def episodes(self) -> list[EpisodeSpan]:
        """Return the episodes in the history, in order."""
        with self._lock:
            return list(self._episodes.values())

    def __len__(self) -> int:
        return len(self._held)

    def __iter__(self) -> Iterator[StepTrace]:
        with self._lock:
            held = tuple(self._held)
        return (trace for trace, _ in held)

    def __getitem__(self, position: int) -> StepTrace:
        with self._lock:
            return self._held[position][0]

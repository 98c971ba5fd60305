"""Data of a trace: a step, its stages, every version of every key; and a bounded history."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from threading import Lock
from typing import Any, Literal

from tensordict import TensorDictBase
from torch import Tensor

from tdx.errors import ArgumentError, KeyNotFoundError, TdxError, did_you_mean
from tdx.keys import NestedKey, format_key

Direction = Literal["forward", "inverse"]
Hook = Literal["reset", "step"]
Kind = Literal["env", "stage", "policy", "given", "kept"]


@dataclass(frozen=True, slots=True, eq=False)
class ValueVersion:
    """One version of a key, with the value that it had then.

    Args:
        key: the key.
        number: 0 for what the chain is given (by the env inside, by the policy or the caller),
            then 1, 2, … for what its stages write.
        lane: ``forward`` for what comes out of the env, ``inverse`` for what goes into it.
        value: the tensor ``[*B, ...]``, not copied; a list of rows where they differ in shape.
        in_place: whether it was written over the version before it, in the same memory.
        lost: whether a later in-place write went over ``value`` before a copy could be kept.
    """

    key: NestedKey
    number: int
    lane: Direction
    value: Any
    in_place: bool = False
    lost: bool = False

    @property
    def name(self) -> str:
        """Key and number, ``observation@2``."""
        return f"{format_key(self.key)}@{self.number}"

    def __repr__(self) -> str:
        return self.name


Versions = Mapping[NestedKey, ValueVersion]


@dataclass(frozen=True, slots=True, eq=False)
class StageTrace:
    """What one hook of one stage did, and how long it took.

    Args:
        kind: ``env`` for the env inside, ``stage``, ``policy``; ``given`` for what the caller
            put in, and ``kept`` for the rows that a partial reset leaves alone.
        index: the stage's place in the chain, from 0, running on through nested envs; -1 for
            what is no stage.
        name: class name of the transform, env or policy.
        direction: ``forward`` from the env to the outside, ``inverse`` on the way in.
        hook: ``reset`` or ``step``.
        time_ns: how long the hook took, the stages and envs that it steps itself included.
        read: the versions under the keys that it declares to read.
        written: the versions that it made, by key.
        dropped: the keys that ended here.
        undeclared: those of ``written`` that its out-keys do not name.
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

    @property
    def place(self) -> str:
        """Index and name, as people read them: ``0 StepCounter``."""
        return f"{self.index} {self.name}" if self.kind == "stage" else self.name


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class StepTrace:
    """One reset or one step, with all that happened in it.

    Args:
        index: the number of this trace, from 0.
        step: how many steps were made before it.
        episode: how many resets were made before the one that this belongs to, partial ones
            included.
        phase: ``reset`` or ``step``.
        tensordict: what ``env.reset()`` or ``env.step()`` returned, ``[*B]``; of a trace with
            an error, what went in.
        stages: every hook in the order in which they ran.
        given: the versions that the way in began with.
        time_ns: how long all of it took, without the work of tracing.
        error: what was raised in the last of ``stages``; none where all went well.
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
        """What came out of the chain, ``[*B]``: a step's ``next``, or what a reset returned."""
        after = self.tensordict.get("next", None) if self.phase == "step" else None
        return self.tensordict if after is None else after

    @property
    def unattributed_ns(self) -> int:
        """What of the time was spent in none of the hooks."""
        return self.time_ns - sum(stage.time_ns for stage in self.stages)

    def after(self, index: int, direction: Direction = "forward") -> dict[NestedKey, ValueVersion]:
        """The versions that are there after a stage; -1 for the env inside.

        Args:
            index: the stage's place in the chain.
            direction: ``forward`` for what comes out of the env at this place; ``inverse`` for
                what the stage hands on inwards, where -1 is what the env inside takes.
        """
        current = dict(self.given) if direction == "inverse" else {}
        for stage in self.stages:
            if stage.direction != direction:
                continue
            if stage.kind in ("env", "stage") and not _reached(stage.index, index, direction):
                break
            if stage.kind == "kept" and index < self._last_index:
                continue
            current.update(stage.written)
            for key in stage.dropped:
                current.pop(key, None)
        return current

    @property
    def _last_index(self) -> int:
        return max((stage.index for stage in self.stages), default=-1)

    def versions(self) -> Iterator[ValueVersion]:
        """Every version that this step was given or made, in order."""
        yield from self.given.values()
        for stage in self.stages:
            yield from stage.written.values()

    def version(self, name: str, direction: Direction = "forward") -> ValueVersion:
        """One version by its name.

        Args:
            name: such as ``"observation@2"``; the last one for a key without a number.
            direction: which lane it is looked for in.

        Raises:
            KeyNotFoundError: there is none of that name.
        """
        found = {each.name: each for each in self.versions() if each.lane == direction}
        last = {format_key(each.key): each for each in found.values()}
        known = {**last, **found}
        if name not in known:
            hint = did_you_mean(name, known, otherwise=f"there are {', '.join(found)}")
            raise KeyNotFoundError(f"no version {name!r} in step {self.step}", hint=hint)
        return known[name]

    def writer(self, key: NestedKey, direction: Direction = "forward") -> StageTrace | None:
        """Who wrote the last version of a key; ``None`` where nobody did."""
        for stage in reversed(self.stages):
            if stage.direction == direction and key in stage.written:
                return stage
        return None

    @property
    def nbytes(self) -> int:
        """The memory that its values hold; what it shares with other traces counts in each."""
        storages = {}
        for version in self.versions():
            values = version.value if isinstance(version.value, list) else [version.value]
            for value in values:
                if isinstance(value, Tensor):
                    storage = value.untyped_storage()
                    storages[storage.data_ptr()] = storage.nbytes()
        return sum(storages.values())


def _reached(stage: int, index: int, direction: Direction) -> bool:
    """Whether a stage runs no later than the one that is asked for."""
    return stage <= index if direction == "forward" else stage >= index


@dataclass(frozen=True, slots=True)
class EpisodeSpan:
    """The part of an episode that a history holds.

    Args:
        episode: its number.
        first: index of its first trace that is held.
        last: index of its last one.
        steps: how many steps of it are held.
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
        max_traces: the most resets and steps.
        max_bytes: the most memory that their tensors hold. What two traces share is counted in
            both, so the true use is never above it.

    Raises:
        ArgumentError: a limit is below 1.

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
        """The memory held."""
        return self._nbytes

    def append(self, trace: StepTrace) -> None:
        """Keep one more trace."""
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
        """Forget all."""
        with self._lock:
            self.forgotten += len(self._held)
            self._held.clear()
            self._episodes.clear()
            self._nbytes = 0

    def find(self, index: int) -> StepTrace | None:
        """The trace with this ``index``; ``None`` where it is forgotten or not yet made."""
        with self._lock:
            place = index - self._held[0][0].index if self._held else -1
            return self._held[place][0] if 0 <= place < len(self._held) else None

    def episodes(self) -> list[EpisodeSpan]:
        """The episodes that are held, in order."""
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

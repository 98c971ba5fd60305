"""What a contract holds: stages, specs, state and reference values of a stack, as data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from tdx.compare.values import EXACT, Tolerance, Values
from tdx.foundation.html_repr import repr_html
from tdx.foundation.keys import NestedKey, format_key, normalize_key

if TYPE_CHECKING:
    from torch import Tensor

    from tdx.stacks.observe import CallRecording

VERSION = 2
"""Version of the format of a contract; version 1 has no recorded calls."""
Lane = Literal["forward", "inverse"]
Place = tuple[Lane, int, str]
"""Direction, index of the stage, and name of the key; -1 is the env inside."""
Part = Literal["observation", "action", "reward", "done"]
DEFAULT_PARTS: tuple[Part, ...] = ("observation", "action")
OPAQUE = "opaque"
"""What :attr:`StageRecord.random` is of a stage that was passed over."""
DONE_KEYS = ("done", "terminated", "truncated")


def key_name(key: NestedKey) -> str:
    """Return the name of a key in a contract; dots inside its parts are escaped.

    Example:
        >>> key_name(("a", "b.c"))
        'a.b%2Ec'
    """
    parts = (key,) if isinstance(key, str) else key
    return format_key(tuple(part.replace("%", "%25").replace(".", "%2E") for part in parts))


def parse_key_name(name: str) -> NestedKey:
    """Return the key of a name; the inverse of :func:`key_name`."""
    parts = (part.replace("%2E", ".").replace("%25", "%") for part in name.split("."))
    return normalize_key(tuple(parts))


def display_key(name: str) -> str:
    """Return a key as users write it, from its name in a contract.

    Example:
        >>> display_key("observation%2Estate")
        'observation.state'
    """
    return format_key(parse_key_name(name))


@dataclass(frozen=True, slots=True)
class SpecRecord:
    """What a contract records of the :class:`~tdx.specs.leaf.LeafSpec` of a key after a stage.

    Args:
        key: Name of the key.
        part: Part of the env that the key belongs to.
        shape: Shape of one row.
        dtype: Such as ``float32``.
        domain: Values that it allows, as text.
        features: Where each feature of the last dim comes from, if it is known.
    """

    key: str
    part: str
    shape: tuple[int, ...]
    dtype: str
    domain: str = "any"
    features: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class StateRecord:
    """One tensor of the state that a stage keeps across episodes.

    Args:
        name: Name of the tensor, such as ``obs_rms.mean``.
        shape: Its shape.
        dtype: Such as ``float64``.
        digest: Hash of its values.
        changes: True if steps change it.
        value: The tensor. ``None`` if the first step creates it, or if it is not stored.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    digest: str
    changes: bool
    value: Tensor | None = field(compare=False, repr=False, default=None)


@dataclass(frozen=True, slots=True)
class StageRecord:
    """One stage.

    Args:
        index: Index of the stage, from 0 for the innermost one; -1 for the env inside.
        name: Class name.
        role: What it does, such as ``normalize``; stages of different libraries share roles.
        arguments: Arguments as plain data.
        specs: Specs after the stage.
        state: State that it keeps across episodes.
        tolerance: Largest difference of its values.
        writes: Keys that it writes, as ``forward observation``.
        random: ``seeded`` if it follows the seed, ``excluded`` if it does not, :data:`OPAQUE` if
            it was not run; ``None`` if it has no randomness.
    """

    index: int
    name: str
    role: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    specs: tuple[SpecRecord, ...] = ()
    state: tuple[StateRecord, ...] = ()
    tolerance: Tolerance = EXACT
    writes: tuple[str, ...] = ()
    random: str | None = None

    @property
    def place(self) -> str:
        """Display name: ``stage 5 (VecNormalize)``."""
        return f"stage {self.index} ({self.name})" if self.index >= 0 else f"the env ({self.name})"

    @property
    def written(self) -> tuple[tuple[Lane, str], ...]:
        """Direction and key of what it writes."""
        return tuple(
            ("inverse" if name.startswith("inverse ") else "forward", name.partition(" ")[2])
            for name in self.writes
        )

    @property
    def has_known_role(self) -> bool:
        """True if the class of the stage says what it does."""
        return self.role != self.name

    def spec(self, key: str) -> SpecRecord | None:
        """Return the spec of a key after the stage."""
        return next((spec for spec in self.specs if spec.key == key), None)


class RowPlace(NamedTuple):
    """Where a row of values was recorded.

    Args:
        episode: Episode, from 0.
        step: Step of the episode, from 0. ``None``: the reset before it.
        env: Sub-env, from 0.
    """

    episode: int
    step: int | None
    env: int


@dataclass(frozen=True, slots=True)
class Segment:
    """Inputs of one episode.

    Args:
        calls: Results of the env inside by key, ``[C, R, ...]`` for C calls and R rows; the first
            call is the reset.
        actions: Actions of the policy by key, ``[T, R, ...]``.
    """

    calls: Mapping[NestedKey, Tensor]
    actions: Mapping[NestedKey, Tensor]

    @property
    def steps(self) -> int:
        """Number of steps."""
        return min(map(len, self.actions.values()), default=0)

    @property
    def rows(self) -> int:
        """Number of rows."""
        return min((value.shape[1] for value in self.calls.values()), default=1)


@dataclass(frozen=True, slots=True)
class StateHistory:
    """State of the stages after each reset and step of the reference inputs, while they learn.

    Args:
        rows: Number of sub-envs, on which statistics over all of them depend.
        values: By stage and name, ``[T, ...]``; of a large tensor a thumbnail. NaN before the stage
            creates it.
        streams: By the name of a random generator, such as ``torch``, ``[T]``: equal numbers stand
            for equal states of it.
    """

    rows: int
    values: Mapping[tuple[int, str], Tensor] = field(repr=False)
    streams: Mapping[str, Tensor] = field(repr=False)


@dataclass(frozen=True, slots=True)
class Contract:
    """What a stack does to its inputs, as recorded.

    Args:
        kind: Kind of the stack, such as ``stable-baselines3``.
        env: Name of the env inside.
        seed: Seed of the reference steps.
        libraries: Versions of the libraries.
        compare: Parts that are compared: observations and actions by default.
        stages: The env inside, then the stages.
        inputs: Reference inputs.
        values: Reference values by direction, stage and key.
        notes: What the contract does not cover, each a sentence.
        recording: Calls of each level, for stacks of the same kind. ``None``: the levels of this
            kind of stack cannot be observed, or the contract has version 1.
        golden_random: Stages whose reference values other runs do not repeat, by index:
            ``excluded`` or ``seeded``.
        tolerances: By name of a key, what replaces parts of the tolerances of all stages: fields
            of :class:`~tdx.compare.values.Tolerance`.
        states: State of the stages in time. ``None``: not recorded, as in older contracts.
        noun: What messages call it: another target that is compared is not a contract.
    """

    _repr_html_ = repr_html

    kind: str
    env: str
    seed: int
    libraries: Mapping[str, str]
    compare: tuple[str, ...]
    stages: tuple[StageRecord, ...]
    inputs: tuple[Segment, ...] = field(repr=False)
    values: Mapping[Place, Values] = field(repr=False)
    notes: tuple[str, ...] = ()
    recording: CallRecording | None = field(default=None, repr=False)
    golden_random: Mapping[int, str] = field(default_factory=dict)
    tolerances: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    states: StateHistory | None = field(default=None, repr=False)
    noun: str = "contract"

    def stage(self, index: int) -> StageRecord:
        """Return a stage by its index; -1 is the env inside."""
        return self.stages[index + 1]

    @property
    def steps(self) -> int:
        """Number of recorded steps."""
        if self.recording is not None:
            return self.recording.steps
        return sum(segment.steps for segment in self.inputs)

    @property
    def last(self) -> int:
        """Index of the last stage."""
        return len(self.stages) - 2

    def tolerance(self, key: str, of_stages: Tolerance) -> Tolerance:
        """Return the tolerance of a key where that of its stages is known."""
        return replace(of_stages, **self.tolerances.get(key, {}))

    def row_places(self, lane: Lane, records: int, rows: int) -> list[list[RowPlace]]:
        """Return where the records of a reference value were recorded; empty if it is not known."""
        # A reward has no record of the reset, as an action has none.
        for first in (1,) if lane == "inverse" else (0, 1):
            places = [
                [RowPlace(episode, step - 1 if step else None, env) for env in range(rows)]
                for episode, segment in enumerate(self.inputs)
                for step in range(first, segment.steps + 1)
            ]
            if len(places) == records:
                return places
        return []

    def value_at(self, lane: Lane, index: int, key: str) -> tuple[Values | None, Tolerance]:
        """Return the value of a key after a stage, and the tolerance of all stages so far."""
        forward = lane == "forward"
        indices = range(-1, index + 1) if forward else range(self.last + 1, index - 1, -1)
        current: Values | None = None
        tolerance = EXACT
        for at in indices:
            value = self.values.get((lane, at, key))
            current = current if value is None else value
            stage = self.stage(at) if 0 <= at <= self.last else None
            if stage is not None and (value is not None or not stage.writes):
                tolerance = tolerance.widened(stage.tolerance)
        return current, tolerance

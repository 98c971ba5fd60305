"""Where every key comes from and where it goes: each version, its writer and its readers.

``observation@0`` is what the env itself returns; each stage that writes the key makes the next
version. On the way in ``action@0`` is what the policy gives, and the env takes the last version.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from tdx.errors import KeyNotFoundError, did_you_mean
from tdx.inspection.leaf import LeafSpec, Part
from tdx.inspection.stage_flow import ChainFlow, Lane, LaneName, StageFlow, chain_flow
from tdx.keys import NestedKey, format_key

if TYPE_CHECKING:
    from tdx.envs import EnvBase

PlaceKind = Literal["env", "stage", "policy", "output"]


@dataclass(frozen=True, slots=True)
class Place:
    """Who writes or reads.

    Args:
        kind: the env inside, a stage, the policy (who gives actions), or ``output``: whoever
            gets what comes out of the chain.
        stage: the stage's index.
        name: the stage's class name.
        next_step: whether it reads at the step after.
    """

    kind: PlaceKind
    stage: int | None = None
    name: str | None = None
    next_step: bool = False

    @classmethod
    def of(cls, flow: StageFlow, *, next_step: bool = False) -> Place:
        """The place that a stage is."""
        return cls("stage", flow.index, flow.name, next_step)

    def __str__(self) -> str:
        return f"{self.stage} {self.name}" if self.kind == "stage" else self.kind

    def to_dict(self) -> dict[str, Any]:
        """As plain data."""
        return {
            "kind": self.kind,
            "stage": self.stage,
            "transform": self.name,
            "next_step": self.next_step,
        }


ENV, POLICY, OUTPUT = Place("env"), Place("policy"), Place("output")


@dataclass(frozen=True, slots=True)
class KeyVersion:
    """One version of a key.

    Args:
        key: the key.
        number: 0 for the one that the chain is given, then 1, 2, …
        lane: the direction that it flows in.
        part: what it is to the env.
        spec: what is promised of it.
        writer: who made it.
        source: the version that it was made from, such as ``"reward@0"``.
        readers: who reads it.
        ended: who drops or renames it; none where it lives on or is overwritten.
    """

    key: NestedKey
    number: int
    lane: LaneName
    part: Part | None
    spec: LeafSpec | None
    writer: Place
    source: str | None
    readers: tuple[Place, ...]
    ended: Place | None

    @property
    def name(self) -> str:
        """Key and number, ``observation@2``."""
        return f"{format_key(self.key)}@{self.number}"

    def to_dict(self) -> dict[str, Any]:
        """As plain data."""
        spec = None if self.spec is None else self.spec.to_dict()
        return {
            "version": self.name,
            "key": format_key(self.key),
            "number": self.number,
            "lane": self.lane,
            "part": self.part,
            "writer": self.writer.to_dict(),
            "source": self.source,
            "readers": [reader.to_dict() for reader in self.readers],
            "ended": None if self.ended is None else self.ended.to_dict(),
            "spec": spec,
        }


@dataclass(frozen=True, slots=True)
class Lineage:
    """Every version of every key.

    Args:
        env: name of the env.
        stages: the transforms' class names in order.
        versions: the versions, those of one key one after the other.
    """

    env: str
    stages: tuple[str, ...]
    versions: tuple[KeyVersion, ...]

    def keys(self) -> list[str]:
        """Every key that exists somewhere, in order of appearance."""
        return list(dict.fromkeys(format_key(version.key) for version in self.versions))

    def only(self, keys: Sequence[str]) -> Lineage:
        """The same lineage with nothing but some keys in it; all of it where none is given.

        Args:
            keys: the keys, their parts with dots between; the name of a group stands for all in it.

        Raises:
            KeyNotFoundError: there is no such key at any stage.
        """
        known = self.keys()
        for key in keys:
            if not any(_within(each, key) for each in known):
                hint = did_you_mean(key, known, otherwise=f"the keys are {', '.join(known)}")
                raise KeyNotFoundError(f"no key {key!r} in the env or after any stage", hint=hint)
        kept = tuple(
            version
            for version in self.versions
            if not keys or any(_within(format_key(version.key), key) for key in keys)
        )
        return Lineage(self.env, self.stages, kept)

    def to_dict(self) -> dict[str, Any]:
        """As plain data."""
        return {
            "env": self.env,
            "stages": list(self.stages),
            "versions": [version.to_dict() for version in self.versions],
        }


def inspect_keys(env: EnvBase, name: str | None = None) -> Lineage:
    """Trace every key of an env through its chain; nothing is reset or stepped.

    Args:
        env: the env, transformed or not.
        name: what to call it; by default the class of the innermost env.

    Raises:
        TdxError: a stage cannot take the specs before it; the error names the stage.

    Example:
        >>> from tdx import GymEnv, RewardScaling, TransformedEnv
        >>> lineage = inspect_keys(TransformedEnv(GymEnv("Pendulum-v1"), RewardScaling(0.0, 0.1)))
        >>> [(version.name, str(version.writer)) for version in lineage.only(["reward"]).versions]
        [('reward@0', 'env'), ('reward@1', '0 RewardScaling')]
    """
    from tdx.inspection.spec_report import innermost

    flow = chain_flow(env)
    label = name or type(innermost(env)).__name__
    versions = [*_forward(flow), *_inverse(flow)]
    return Lineage(label, tuple(stage.name for stage in flow.stages), tuple(versions))


def _within(key: str, wanted: str) -> bool:
    return key == wanted or key.startswith(f"{wanted}.")


@dataclass
class _Draft:
    """A version whose readers are still being found."""

    key: NestedKey
    number: int
    writer: Place
    spec: LeafSpec | None
    source: str | None = None
    readers: list[Place] = field(default_factory=list)
    ended: Place | None = None

    @property
    def name(self) -> str:
        return f"{format_key(self.key)}@{self.number}"


class _Ledger:
    """Writes down versions while a lane is followed from its start to its end."""

    def __init__(self, lane: LaneName) -> None:
        self._lane = lane
        self._current: dict[NestedKey, _Draft] = {}
        self._all: dict[NestedKey, list[_Draft]] = {}

    def begin(self, leaves: Iterable[LeafSpec], writer: Place) -> None:
        for leaf in leaves:
            self._add(_Draft(leaf.key, 0, writer, leaf))

    def pass_stage(self, lane: Lane, place: Place, after: dict[NestedKey, LeafSpec]) -> None:
        """Let a stage read, write, drop and rename."""
        for key in lane.reads:
            self.read(key, place)
        sources = {write.key: self._name(write.source) for write in lane.writes}
        for old, new in lane.renames:
            sources[new] = self._name(old)
            self._end(old, place)
        for key in lane.drops:
            self._end(key, place)
        for key, source in sources.items():
            number = self._next_number(key)
            self._add(_Draft(key, number, place, after.get(key), source))

    def read(self, key: NestedKey, place: Place) -> None:
        draft = self._current.get(key)
        if draft is not None and place not in draft.readers:
            draft.readers.append(place)

    def finish(self, reader: Place) -> list[KeyVersion]:
        """What is current at the end is read by whoever stands there."""
        for key in self._current:
            self.read(key, reader)
        return [self._version(draft) for drafts in self._all.values() for draft in drafts]

    def _version(self, draft: _Draft) -> KeyVersion:
        part = draft.spec.part if draft.spec else None
        return KeyVersion(
            draft.key,
            draft.number,
            self._lane,
            part,
            draft.spec,
            draft.writer,
            draft.source,
            tuple(draft.readers),
            draft.ended,
        )

    def _add(self, draft: _Draft) -> None:
        self._current[draft.key] = draft
        self._all.setdefault(draft.key, []).append(draft)

    def _end(self, key: NestedKey, place: Place) -> None:
        draft = self._current.pop(key, None)
        if draft is not None:
            draft.ended = place

    def _name(self, key: NestedKey | None) -> str | None:
        draft = None if key is None else self._current.get(key)
        return None if draft is None else draft.name

    def _next_number(self, key: NestedKey) -> int:
        """One up; a key that the chain makes begins with 1, since 0 is what it is given."""
        known = self._all.get(key)
        return known[-1].number + 1 if known else 1


def _forward(flow: ChainFlow) -> list[KeyVersion]:
    ledger = _Ledger("forward")
    ledger.begin(flow.outputs.values(), ENV)
    for stage in flow.stages:
        ledger.pass_stage(stage.forward, Place.of(stage), dict(stage.outputs))
    for stage in flow.stages:
        for key in stage.carried:
            ledger.read(key, Place.of(stage, next_step=True))
    mapped = {key for stage in flow.stages for key in stage.inverse.reads}
    for key, leaf in flow.inputs.items():
        if leaf.part == "state" and key not in mapped:
            ledger.read(key, Place("env", next_step=True))
    return ledger.finish(OUTPUT)


def _inverse(flow: ChainFlow) -> list[KeyVersion]:
    """The way in; state that only comes back from the step before is no version of its own."""
    outer = flow.stages[-1].inputs if flow.stages else flow.inputs
    given = {key for stage in flow.stages for key in stage.inverse.reads}
    ledger = _Ledger("inverse")
    taken = (leaf for key, leaf in outer.items() if leaf.part == "action" or key in given)
    ledger.begin(taken, POLICY)
    for stage, inner in reversed(list(zip(flow.stages, _inner_inputs(flow), strict=False))):
        ledger.pass_stage(stage.inverse, Place.of(stage), inner)
    return ledger.finish(ENV)


def _inner_inputs(flow: ChainFlow) -> list[dict[NestedKey, LeafSpec]]:
    """What is given on the inner side of each stage."""
    return [dict(inputs) for inputs in (flow.inputs, *(stage.inputs for stage in flow.stages[:-1]))]

"""Where every key comes from and where it goes: each version, its writer and its readers.

``observation@0`` is what the env itself returns; each stage that writes the key makes the next
version. On the way in ``action@0`` is what the policy gives, and the env takes the last version.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from tdx.errors import KeyNotFoundError, did_you_mean
from tdx.inspection.leaf import LeafSpec, Part
from tdx.inspection.ledger import Ledger, Version
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


def _begin(ledger: Ledger[Place], leaves: Iterable[LeafSpec], writer: Place) -> None:
    for leaf in leaves:
        ledger.begin(leaf.key, writer, leaf)


def _pass_stage(
    ledger: Ledger[Place], lane: Lane, place: Place, after: Mapping[NestedKey, LeafSpec]
) -> None:
    """Let a stage read, write, drop and rename."""
    for key in lane.reads:
        ledger.read(key, place)
    sources = {write.key: ledger.name(write.source) for write in lane.writes}
    for old, new in lane.renames:
        sources[new] = ledger.name(old)
        ledger.end(old, place, "renamed")
    for key in lane.drops:
        ledger.end(key, place, "dropped")
    for key, source in sources.items():
        ledger.write(key, place, after.get(key), source)


def _finish(ledger: Ledger[Place], lane: LaneName, reader: Place) -> list[KeyVersion]:
    """What is there at the end is read by whoever stands there."""
    for key in ledger.current:
        ledger.read(key, reader)
    return [_version(version, lane) for version in ledger.by_key()]


def _version(version: Version[Place], lane: LaneName) -> KeyVersion:
    return KeyVersion(
        version.key,
        version.number,
        lane,
        version.spec.part if version.spec else None,
        version.spec,
        version.writer,
        version.source,
        tuple(version.readers),
        None if version.how == "overwritten" else version.ended_by,
    )


def _forward(flow: ChainFlow) -> list[KeyVersion]:
    ledger = Ledger[Place]()
    _begin(ledger, flow.outputs.values(), ENV)
    for stage in flow.stages:
        _pass_stage(ledger, stage.forward, Place.of(stage), stage.outputs)
    for stage in flow.stages:
        for key in stage.carried:
            ledger.read(key, Place.of(stage, next_step=True))
    mapped = {key for stage in flow.stages for key in stage.inverse.reads}
    for key, leaf in flow.inputs.items():
        if leaf.part == "state" and key not in mapped:
            ledger.read(key, Place("env", next_step=True))
    return _finish(ledger, "forward", OUTPUT)


def _inverse(flow: ChainFlow) -> list[KeyVersion]:
    """The way in; state that only comes back from the step before is no version of its own."""
    outer = flow.stages[-1].inputs if flow.stages else flow.inputs
    given = {key for stage in flow.stages for key in stage.inverse.reads}
    ledger = Ledger[Place]()
    taken = (leaf for key, leaf in outer.items() if leaf.part == "action" or key in given)
    _begin(ledger, taken, POLICY)
    for stage, inner in reversed(list(zip(flow.stages, _inner_inputs(flow), strict=False))):
        _pass_stage(ledger, stage.inverse, Place.of(stage), inner)
    return _finish(ledger, "inverse", ENV)


def _inner_inputs(flow: ChainFlow) -> list[dict[NestedKey, LeafSpec]]:
    """What is given on the inner side of each stage."""
    return [dict(inputs) for inputs in (flow.inputs, *(stage.inputs for stage in flow.stages[:-1]))]

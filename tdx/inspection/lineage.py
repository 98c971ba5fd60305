"""Versions of each key: the stage that writes each one, and its readers.

``observation@0`` is the value that the env returns. Each stage that writes the key creates the
next version. In the inverse direction ``action@0`` is the policy's action, and the env reads the
last version.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Generic, Literal, TypeVar

from tdx.foundation.errors import KeyNotFoundError, did_you_mean
from tdx.foundation.keys import NestedKey, format_key
from tdx.foundation.serialization import Entries, Entry, Result, key_entry
from tdx.inspection.chain import ChainFlow, Direction, KeyFlow, StageFlow, find_flow
from tdx.specs.leaf import LeafSpec, Part
from tdx.stacks import open_stack

if TYPE_CHECKING:
    from tdx.stacks.tracer import OnTrace

NodeT = TypeVar("NodeT")
EndReason = Literal["overwritten", "dropped", "renamed"]
NodeKind = Literal["env", "stage", "policy", "output"]


@dataclass
class VersionRecord(Generic[NodeT]):
    """One version of a key, while it is recorded.

    Args:
        number: 0 for a value that the chain receives, then 1, 2, ….
        source: Version that it is computed from, such as ``"reward@0"``.
        ended_by: Node that ends it; ``None`` if it leaves the chain.
    """

    key: NestedKey
    number: int
    writer: NodeT
    spec: LeafSpec | None = None
    source: str | None = None
    readers: list[NodeT] = field(default_factory=list)
    ended_by: NodeT | None = None
    end_reason: EndReason | None = None

    @property
    def name(self) -> str:
        """Key and number, ``observation@2``."""
        return f"{format_key(self.key)}@{self.number}"


class VersionTracker(Generic[NodeT]):
    """Records the versions of one direction.

    Example:
        >>> tracker = VersionTracker[str]()
        >>> tracker.begin("reward", "env")
        >>> tracker.read("reward", "RewardSum")
        >>> tracker.write("reward", "RewardClipping", source="reward@0")
        >>> [(each.name, each.readers, each.end_reason) for each in tracker.versions]
        [('reward@0', ['RewardSum'], 'overwritten'), ('reward@1', [], None)]
    """

    def __init__(self) -> None:
        self.versions: list[VersionRecord[NodeT]] = []
        self.current: dict[NestedKey, VersionRecord[NodeT]] = {}
        self._last: dict[NestedKey, int] = {}

    def begin(self, key: NestedKey, writer: NodeT, spec: LeafSpec | None = None) -> None:
        """Record a key that the chain receives."""
        self._add(VersionRecord(key, 0, writer, spec))

    def read(self, key: NestedKey, reader: NodeT) -> None:
        """Record a reader of the current version; ignored for an unknown key."""
        version = self.current.get(key)
        if version is not None and reader not in version.readers:
            version.readers.append(reader)

    def write(
        self,
        key: NestedKey,
        writer: NodeT,
        spec: LeafSpec | None = None,
        source: str | None = None,
    ) -> None:
        """Record a new version. It has number 1 if the chain does not receive the key."""
        self.end(key, writer, "overwritten")
        self._add(VersionRecord(key, self._last.get(key, 0) + 1, writer, spec, source))

    def end(self, key: NestedKey, place: NodeT, end_reason: EndReason) -> None:
        """End the current version; ignored for an unknown key."""
        version = self.current.pop(key, None)
        if version is not None:
            version.ended_by, version.end_reason = place, end_reason

    def name(self, key: NestedKey | None) -> str | None:
        """Return the name of the current version."""
        version = None if key is None else self.current.get(key)
        return None if version is None else version.name

    def by_key(self) -> list[VersionRecord[NodeT]]:
        """Return the versions grouped by key."""
        grouped: dict[NestedKey, list[VersionRecord[NodeT]]] = {}
        for version in self.versions:
            grouped.setdefault(version.key, []).append(version)
        return [version for versions in grouped.values() for version in versions]

    def _add(self, version: VersionRecord[NodeT]) -> None:
        self.current[version.key] = version
        self._last[version.key] = version.number
        self.versions.append(version)


@dataclass(frozen=True, slots=True)
class FlowNode(Result):
    """Writer or reader of a version.

    Args:
        kind: The base env, a stage, the policy, or ``output``: the caller that receives the result.
        stage: Index of the stage.
        name: Class name of the stage.
        next_step: True for a read in the following step.
    """

    json_entries: ClassVar[Entries] = (
        *("kind", Entry("stage", omit_none=True), Entry("transform", "name", omit_none=True)),
        "next_step",
    )

    kind: NodeKind
    stage: int | None = None
    name: str | None = None
    next_step: bool = False

    @classmethod
    def of(cls, flow: StageFlow, *, next_step: bool = False) -> FlowNode:
        """Return the node of a stage."""
        return cls("stage", flow.index, flow.name, next_step)

    def __str__(self) -> str:
        return f"{self.stage} {self.name}" if self.kind == "stage" else self.kind


@dataclass(frozen=True, slots=True)
class KeyVersion(Result):
    """One version of a key.

    Args:
        key: The key.
        number: 0 for a value that the chain receives, then 1, 2, …
        lane: Direction.
        part: Part of the env that the key belongs to.
        spec: Spec of the value.
        writer: Node that writes it.
        source: Version that it is computed from, such as ``"reward@0"``.
        readers: Nodes that read it.
        ended: Node that drops or renames it; ``None`` if it is overwritten or leaves the chain.
    """

    json_entries: ClassVar[Entries] = (
        *(Entry("version", "name"), key_entry("key"), "number", "lane", "part"),
        *("writer", "source", "readers", "ended", "spec"),
    )

    key: NestedKey
    number: int
    lane: Direction
    part: Part | None
    spec: LeafSpec | None
    writer: FlowNode
    source: str | None
    readers: tuple[FlowNode, ...]
    ended: FlowNode | None

    @property
    def name(self) -> str:
        """Key and number, ``observation@2``."""
        return f"{format_key(self.key)}@{self.number}"


@dataclass(frozen=True, slots=True)
class Lineage(Result):
    """Versions of all keys.

    Args:
        env: Name of the env.
        stages: Class names of the transforms, in order.
        versions: The versions, grouped by key.
    """

    json_entries: ClassVar[Entries] = ("env", "versions")

    env: str
    stages: tuple[str, ...]
    versions: tuple[KeyVersion, ...]

    def keys(self) -> list[str]:
        """Return every key, in order of appearance."""
        return list(dict.fromkeys(format_key(version.key) for version in self.versions))

    def only(self, keys: Sequence[str]) -> Lineage:
        """Return the lineage restricted to some keys; unchanged if ``keys`` is empty.

        Keys have dots between their parts; a group stands for all keys in it.
        """
        known = self.keys()
        for key in keys:
            if not any(_is_within(each, key) for each in known):
                hint = did_you_mean(key, known, otherwise=f"the keys are {', '.join(known)}")
                raise KeyNotFoundError(
                    f"unknown key {key!r}: not in the env or any stage", hint=hint
                )
        kept = tuple(
            version
            for version in self.versions
            if not keys or any(_is_within(format_key(version.key), key) for key in keys)
        )
        return Lineage(self.env, self.stages, kept)


def inspect_keys(
    env: object, name: str | None = None, *, on_trace: OnTrace | None = None
) -> Lineage:
    """Trace every key of an env through its chain.

    An env of tdx is not stepped; a stack of another library makes a few random steps.

    Example:
        >>> from tdx import GymEnv, RewardScaling, TransformedEnv
        >>> lineage = inspect_keys(TransformedEnv(GymEnv("Pendulum-v1"), RewardScaling(0.0, 0.1)))
        >>> [(version.name, str(version.writer)) for version in lineage.only(["reward"]).versions]
        [('reward@0', 'env'), ('reward@1', '0 RewardScaling')]
    """
    stack = open_stack(env)
    return trace_flow(find_flow(stack, on_trace), name or stack.name)


def trace_flow(flow: ChainFlow, name: str) -> Lineage:
    """Trace every key through a known data flow."""
    versions = [*_forward_versions(flow), *_inverse_versions(flow)]
    return Lineage(name, tuple(stage.name for stage in flow.stages), tuple(versions))


def _is_within(key: str, group: str) -> bool:
    return key == group or key.startswith(f"{group}.")


def _follow_stage(
    tracker: VersionTracker[FlowNode],
    lane: KeyFlow,
    node: FlowNode,
    after: Mapping[NestedKey, LeafSpec],
) -> None:
    """Record what a stage reads, writes, drops and renames."""
    for key in lane.reads:
        tracker.read(key, node)
    sources = {write.key: tracker.name(write.source) for write in lane.writes}
    for old, new in lane.renames:
        sources[new] = tracker.name(old)
        tracker.end(old, node, "renamed")
    for key in lane.drops:
        tracker.end(key, node, "dropped")
    for key, source in sources.items():
        tracker.write(key, node, after.get(key), source)


def _finish_lane(
    tracker: VersionTracker[FlowNode], lane: Direction, reader: FlowNode
) -> list[KeyVersion]:
    """Let ``reader`` read the versions that remain, and return all versions."""
    for key in tracker.current:
        tracker.read(key, reader)
    return [
        KeyVersion(
            version.key,
            version.number,
            lane,
            version.spec.part if version.spec else None,
            version.spec,
            version.writer,
            version.source,
            tuple(version.readers),
            None if version.end_reason == "overwritten" else version.ended_by,
        )
        for version in tracker.by_key()
    ]


def _forward_versions(flow: ChainFlow) -> list[KeyVersion]:
    tracker = VersionTracker[FlowNode]()
    for key, leaf in flow.outputs.items():
        tracker.begin(key, ENV, leaf)
    for stage in flow.stages:
        _follow_stage(tracker, stage.forward, FlowNode.of(stage), stage.outputs)
    for stage in flow.stages:
        for key in stage.carried:
            tracker.read(key, FlowNode.of(stage, next_step=True))
    mapped = {key for stage in flow.stages for key in stage.inverse.reads}
    for key, leaf in flow.inputs.items():
        if leaf.part == "state" and key not in mapped:
            tracker.read(key, FlowNode("env", next_step=True))
    return _finish_lane(tracker, "forward", OUTPUT)


def _inverse_versions(flow: ChainFlow) -> list[KeyVersion]:
    """Return the inverse versions, without state that only returns from the previous step."""
    outer = flow.stages[-1].inputs if flow.stages else flow.inputs
    mapped = {key for stage in flow.stages for key in stage.inverse.reads}
    tracker = VersionTracker[FlowNode]()
    for key, leaf in outer.items():
        if leaf.part == "action" or key in mapped:
            tracker.begin(key, POLICY, leaf)
    # The inputs on the env's side of each stage.
    inner = (flow.inputs, *(stage.inputs for stage in flow.stages[:-1]))
    for stage, inputs in reversed(list(zip(flow.stages, inner, strict=False))):
        _follow_stage(tracker, stage.inverse, FlowNode.of(stage), inputs)
    return _finish_lane(tracker, "inverse", ENV)


ENV, POLICY, OUTPUT = FlowNode("env"), FlowNode("policy"), FlowNode("output")

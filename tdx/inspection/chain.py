"""Data flow of a chain: the keys that each stage reads, writes, drops and renames.

It follows from the keys that stages declare and from the specs before and after them, without a
step. Some stages write keys that no argument lists, such as a counter next to each done flag.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal, TypedDict

from tdx.foundation.keys import NestedKey, format_key, split_key, unique_keys
from tdx.foundation.serialization import Entries, Entry, Result, key_entry, keys_entry
from tdx.specs.leaf import INPUT_PARTS, OUTPUT_PARTS, LeafSpec, composite_leaves

if TYPE_CHECKING:
    from tdx.core import StageSpecs
    from tdx.core.transforms import Transform
    from tdx.envs import EnvBase

Direction = Literal["forward", "inverse"]
Leaves = Mapping[NestedKey, LeafSpec]


class Rename(TypedDict):
    """JSON entries of an entry that a stage moves unchanged: its new and its old key."""

    key: str
    source: str


def _format_renames(renames: Iterable[tuple[NestedKey, NestedKey]]) -> list[Rename]:
    return [{"key": format_key(new), "source": format_key(old)} for old, new in renames]


@dataclass(frozen=True, slots=True)
class KeyWrite(Result):
    """Key that a stage writes.

    Args:
        key: The key.
        source: Key that it is computed from; ``None`` if none is declared.
        before: Spec of ``source``.
        after: Spec of ``key`` after the stage; ``None`` if it has none.
        new: True if the key does not exist before the stage.
    """

    json_entries: ClassVar[Entries] = (
        *(key_entry("key"), key_entry("source"), "new"),
        *(Entry(side, without=("key",)) for side in ("before", "after")),
    )

    key: NestedKey
    source: NestedKey | None
    before: LeafSpec | None
    after: LeafSpec | None
    new: bool

    @property
    def differs(self) -> bool:
        """True if the spec of the key differs from that of ``source``."""
        if self.before is None or self.after is None:
            return True
        return bool(self.before.differing_fields(self.after))


@dataclass(frozen=True, slots=True)
class KeyFlow(Result):
    """Keys that a stage handles in one direction.

    Args:
        reads: Keys that it reads.
        writes: Keys that it writes.
        drops: Keys that it removes.
        renames: Old and new key of each entry that it moves unchanged.
    """

    json_entries: ClassVar[Entries] = (
        *(keys_entry("reads"), "writes", keys_entry("drops")),
        Entry("renames", convert=_format_renames),
    )

    reads: tuple[NestedKey, ...] = ()
    writes: tuple[KeyWrite, ...] = ()
    drops: tuple[NestedKey, ...] = ()
    renames: tuple[tuple[NestedKey, NestedKey], ...] = ()

    @property
    def is_empty(self) -> bool:
        """True if the stage does nothing in this direction."""
        return not (self.reads or self.writes or self.drops or self.renames)


@dataclass(frozen=True, slots=True)
class StageFlow(Result):
    """Keys that a stage handles in both directions.

    Args:
        index: Index in the chain, from 0.
        name: Class name of the transform.
        time_behavior: ``pointwise``, ``scan`` or ``control``.
        forward: From the env to the policy.
        inverse: From the policy to the env.
        carried: Keys that a step reads from the previous step.
        outputs: Specs of the outputs after the stage.
        inputs: Specs of the inputs that the stage accepts.
    """

    json_entries: ClassVar[Entries] = (
        *(Entry("stage", "index"), Entry("transform", "name"), "time_behavior"),
        *("forward", "inverse", keys_entry("carried")),
    )

    index: int
    name: str
    time_behavior: str
    forward: KeyFlow
    inverse: KeyFlow
    carried: tuple[NestedKey, ...]
    outputs: Leaves
    inputs: Leaves


@dataclass(frozen=True, slots=True)
class ChainFlow:
    """Data flow of an env with its chain.

    Args:
        outputs: Specs of the outputs of the base env.
        inputs: Specs of the inputs of the base env.
        stages: Data flow of each stage.
    """

    outputs: Leaves
    inputs: Leaves
    stages: tuple[StageFlow, ...]


def analyze_chain(env: EnvBase) -> ChainFlow:
    """Determine the data flow of an env from its specs and the keys that its stages declare.

    Args:
        env: Env, with or without a chain.

    Example:
        >>> from tdx import GymEnv, RewardSum, TransformedEnv
        >>> (stage,) = analyze_chain(TransformedEnv(GymEnv("Pendulum-v1"), RewardSum())).stages
        >>> stage.forward.reads, [write.key for write in stage.forward.writes], stage.carried
        (('reward',), ['episode_reward'], ('episode_reward',))
    """
    from tdx.core import stage_specs

    first, *rest = stage_specs(env)
    outputs, inputs = _leaves(first)
    stages: list[StageFlow] = []
    before = (outputs, inputs)
    for specs in rest:
        after = _leaves(specs)
        stages.append(_analyze_stage(specs, before, after))
        before = after
    return ChainFlow(outputs, inputs, tuple(stages))


def _leaves(specs: StageSpecs) -> tuple[Leaves, Leaves]:
    leaves = composite_leaves(specs.input_spec, specs.output_spec)
    return (
        {leaf.key: leaf for leaf in leaves if leaf.part in OUTPUT_PARTS},
        {leaf.key: leaf for leaf in leaves if leaf.part in INPUT_PARTS},
    )


def _analyze_stage(
    specs: StageSpecs, before: tuple[Leaves, Leaves], after: tuple[Leaves, Leaves]
) -> StageFlow:
    transform = specs.transform
    assert transform is not None
    available = {**before[1], **before[0]}
    forward = _key_flow(
        _pair_keys(transform.in_keys, transform.out_keys, before[0]),
        _expand_groups(transform.in_keys, available),
        _expand_groups(transform.written_keys, after[0]),
        before[0],
        after[0],
        available,
    )
    # State that the stage adds, which it reads from the previous step.
    carried = (
        key
        for key, leaf in after[1].items()
        if leaf.part == "state" and key not in before[1] and key in after[0]
    )
    return StageFlow(
        index=specs.index,
        name=specs.name,
        time_behavior=transform.time_behavior.name.lower(),
        forward=forward,
        inverse=_inverse_flow(transform, before[1], after[1]),
        carried=tuple(carried),
        outputs=after[0],
        inputs=after[1],
    )


def _inverse_flow(transform: Transform, inner: Leaves, outer: Leaves) -> KeyFlow:
    """Return the inverse flow: ``outer`` is the policy's side, ``inner`` the env's."""
    if not transform.invertible:
        return KeyFlow()
    pairs = _pair_keys(transform.out_keys_inv, transform.in_keys_inv, outer)
    reads = _expand_groups(transform.out_keys_inv, outer)
    declared = _expand_groups(transform.in_keys_inv, inner)
    # State that a stage adds or hides is carried between steps, not mapped by the inverse.
    named = {*reads, *declared}
    first = {key: leaf for key, leaf in outer.items() if leaf.part == "action" or key in named}
    last = {key: leaf for key, leaf in inner.items() if leaf.part == "action" or key in named}
    return _key_flow(pairs, reads, declared, first, last, outer)


def _key_flow(
    pairs: Mapping[NestedKey, NestedKey],
    reads: Sequence[NestedKey],
    declared: Sequence[NestedKey],
    before: Leaves,
    after: Leaves,
    available: Leaves,
) -> KeyFlow:
    """Return the flow in one direction; ``pairs`` maps each written key to its source."""
    renames = tuple(
        (old, new)
        for new, old in pairs.items()
        if old in before and old not in after and new in after and new not in before
        if not before[old].differing_fields(after[new])
    )
    moved = {key for pair in renames for key in pair}
    altered = [
        key
        for key, leaf in after.items()
        if key not in before or before[key].differing_fields(leaf)
    ]
    written = [key for key in unique_keys([*declared, *altered]) if key not in moved]
    sources = {key: pairs.get(key, key if key in before else None) for key in written}
    writes = tuple(
        KeyWrite(
            key,
            source,
            available.get(source) if source else None,
            after.get(key),
            key not in available,
        )
        for key, source in sources.items()
    )
    read = [*reads, *(key for key in written if key in before)]
    drops = tuple(key for key in before if key not in after and key not in moved)
    return KeyFlow(tuple(unique_keys(read)), writes, drops, renames)


def _pair_keys(
    sources: Sequence[NestedKey], targets: Sequence[NestedKey], leaves: Leaves
) -> dict[NestedKey, NestedKey]:
    """Map each target key to its source; groups are expanded to their leaves."""
    if len(sources) != len(targets):
        return {}
    sources_by_target: dict[NestedKey, NestedKey] = {}
    for source, target in zip(sources, targets, strict=True):
        length = len(split_key(source))
        for leaf in _expand_groups([source], leaves):
            rest = split_key(leaf)[length:]
            sources_by_target[(*split_key(target), *rest) if rest else target] = leaf
    return sources_by_target


def _expand_groups(keys: Iterable[NestedKey], leaves: Leaves) -> list[NestedKey]:
    """Replace groups by their leaves; ignore unknown keys."""
    expanded: list[NestedKey] = []
    for key in keys:
        parts = split_key(key)
        expanded += [leaf for leaf in leaves if split_key(leaf)[: len(parts)] == parts]
    return unique_keys(expanded)

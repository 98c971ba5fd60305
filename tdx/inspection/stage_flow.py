"""Which keys each stage of a chain reads, writes, drops and renames; nothing is stepped.

What a stage does follows from the keys that it declares and from the specs before and after it:
some stages write what no list of keys names, such as a counter beside each group of done flags.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from tdx.inspection.leaf import INPUT_PARTS, OUTPUT_PARTS, LeafSpec, composite_leaves
from tdx.keys import NestedKey, format_key, split_key, unique_keys

if TYPE_CHECKING:
    from tdx.core import StageSpecs
    from tdx.core.transforms import Transform
    from tdx.envs import EnvBase

LaneName = Literal["forward", "inverse"]
Leaves = Mapping[NestedKey, LeafSpec]


@dataclass(frozen=True, slots=True)
class KeyWrite:
    """One key that a stage writes.

    Args:
        key: the key.
        source: the key that it is made from; none where it is made from nothing that is declared.
        before: the spec of ``source``, none where there is none.
        after: the spec of ``key`` after the stage, none where no spec tells of it.
        new: whether the key is not there before the stage.
    """

    key: NestedKey
    source: NestedKey | None
    before: LeafSpec | None
    after: LeafSpec | None
    new: bool

    def to_dict(self) -> dict[str, Any]:
        """As plain data."""
        return {
            "key": format_key(self.key),
            "source": None if self.source is None else format_key(self.source),
            "new": self.new,
            "before": _side(self.before),
            "after": _side(self.after),
        }


@dataclass(frozen=True, slots=True)
class Lane:
    """What one stage does in one direction.

    Args:
        reads: the keys it reads.
        writes: the keys it writes.
        drops: the keys that end here.
        renames: old and new key of each entry that only moves.
    """

    reads: tuple[NestedKey, ...] = ()
    writes: tuple[KeyWrite, ...] = ()
    drops: tuple[NestedKey, ...] = ()
    renames: tuple[tuple[NestedKey, NestedKey], ...] = ()

    @property
    def idle(self) -> bool:
        """Whether nothing happens in this direction."""
        return not (self.reads or self.writes or self.drops or self.renames)

    def to_dict(self) -> dict[str, Any]:
        """As plain data."""
        return {
            "reads": [format_key(key) for key in self.reads],
            "writes": [write.to_dict() for write in self.writes],
            "drops": [format_key(key) for key in self.drops],
            "renames": [[format_key(old), format_key(new)] for old, new in self.renames],
        }


@dataclass(frozen=True, slots=True)
class StageFlow:
    """What one stage does in both directions.

    Args:
        index: place in the chain, from 0.
        name: class name of the transform.
        time_behaviour: ``pointwise``, ``scan`` or ``control``.
        forward: on the way from the env to the outside.
        inverse: on the way from the outside into the env.
        carried: keys that a step reads from the step before it.
        outputs: the specs of what comes out after the stage.
        inputs: the specs of what the outside gives at this place.
    """

    index: int
    name: str
    time_behaviour: str
    forward: Lane
    inverse: Lane
    carried: tuple[NestedKey, ...]
    outputs: Leaves
    inputs: Leaves

    def to_dict(self) -> dict[str, Any]:
        """What it does, as plain data; the specs at a place are those of the spec report."""
        return {
            "stage": self.index,
            "transform": self.name,
            "time_behaviour": self.time_behaviour,
            "forward": self.forward.to_dict(),
            "inverse": self.inverse.to_dict(),
            "carried": [format_key(key) for key in self.carried],
        }


@dataclass(frozen=True, slots=True)
class ChainFlow:
    """The data flow of an env with its chain.

    Args:
        outputs: the specs of what the env inside returns.
        inputs: the specs of what it takes.
        stages: what each stage does.
    """

    outputs: Leaves
    inputs: Leaves
    stages: tuple[StageFlow, ...]


def chain_flow(env: EnvBase) -> ChainFlow:
    """The data flow of an env with its chain, from its specs and the keys its stages declare.

    Args:
        env: the env, transformed or not.

    Example:
        >>> from tdx import GymEnv, RewardSum, TransformedEnv
        >>> (stage,) = chain_flow(TransformedEnv(GymEnv("Pendulum-v1"), RewardSum())).stages
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
        stages.append(_stage(specs, before, after))
        before = after
    return ChainFlow(outputs, inputs, tuple(stages))


def _leaves(specs: StageSpecs) -> tuple[Leaves, Leaves]:
    leaves = composite_leaves(specs.input_spec, specs.output_spec)
    return (
        {leaf.key: leaf for leaf in leaves if leaf.part in OUTPUT_PARTS},
        {leaf.key: leaf for leaf in leaves if leaf.part in INPUT_PARTS},
    )


def _stage(
    specs: StageSpecs, before: tuple[Leaves, Leaves], after: tuple[Leaves, Leaves]
) -> StageFlow:
    transform = specs.transform
    assert transform is not None
    return StageFlow(
        index=specs.index,
        name=specs.name,
        time_behaviour=transform.time_behaviour.name.lower(),
        forward=_forward(transform, before[0], after[0], before[1]),
        inverse=_inverse(transform, before[1], after[1]),
        carried=tuple(_carried(after[0], before[1], after[1])),
        outputs=after[0],
        inputs=after[1],
    )


def _forward(transform: Transform, before: Leaves, after: Leaves, given: Leaves) -> Lane:
    pairs = _pairs(transform.in_keys, transform.out_keys, before)
    known = {**given, **before}
    reads = _expanded(transform.in_keys, known)
    declared = _expanded(transform._written_keys, after)
    return _lane(pairs, reads, declared, before, after, known)


def _inverse(transform: Transform, inner: Leaves, outer: Leaves) -> Lane:
    """On the way in, what the outside gives comes first and what the env takes last."""
    if not transform.invertible:
        return Lane()
    pairs = _pairs(transform.out_keys_inv, transform.in_keys_inv, outer)
    reads = _expanded(transform.out_keys_inv, outer)
    declared = _expanded(transform.in_keys_inv, inner)
    # State that a stage adds or hides is carried by the steps, not mapped on the way in.
    named = {*reads, *declared}
    first = {key: leaf for key, leaf in outer.items() if leaf.part == "action" or key in named}
    last = {key: leaf for key, leaf in inner.items() if leaf.part == "action" or key in named}
    return _lane(pairs, reads, declared, first, last, outer)


def _lane(
    pairs: Mapping[NestedKey, NestedKey],
    reads: Sequence[NestedKey],
    declared: Sequence[NestedKey],
    before: Leaves,
    after: Leaves,
    known: Leaves,
) -> Lane:
    """One direction of a stage; ``pairs`` has for each key it writes the key it is made from."""
    renames = tuple(
        (old, new)
        for new, old in pairs.items()
        if old in before and old not in after and new in after and new not in before
        if _same_values(before[old], after[new])
    )
    moved = {key for pair in renames for key in pair}
    altered = [key for key, leaf in after.items() if _promise(before.get(key)) != _promise(leaf)]
    written = [key for key in unique_keys([*declared, *altered]) if key not in moved]
    sources = {key: pairs.get(key, key if key in before else None) for key in written}
    writes = tuple(
        KeyWrite(
            key, source, known.get(source) if source else None, after.get(key), key not in known
        )
        for key, source in sources.items()
    )
    read = [*reads, *(key for key in written if key in before)]
    drops = tuple(key for key in before if key not in after and key not in moved)
    return Lane(tuple(unique_keys(read)), writes, drops, renames)


def _carried(outputs: Leaves, inner: Leaves, outer: Leaves) -> Iterable[NestedKey]:
    """What the stage takes back from the step before: state that is there because of it."""
    return (
        key
        for key, leaf in outer.items()
        if leaf.part == "state" and key not in inner and key in outputs
    )


def _pairs(
    sources: Sequence[NestedKey], targets: Sequence[NestedKey], leaves: Leaves
) -> dict[NestedKey, NestedKey]:
    """For each key written the key it is made from; groups are taken leaf by leaf."""
    if len(sources) != len(targets):
        return {}
    found: dict[NestedKey, NestedKey] = {}
    for source, target in zip(sources, targets, strict=True):
        length = len(split_key(source))
        for leaf in _expanded([source], leaves):
            rest = split_key(leaf)[length:]
            found[(*split_key(target), *rest) if rest else target] = leaf
    return found


def _expanded(keys: Iterable[NestedKey], leaves: Leaves) -> list[NestedKey]:
    """The leaves that keys name, those of a group in its place; unknown ones are left out."""
    found: list[NestedKey] = []
    for key in keys:
        parts = split_key(key)
        found += [leaf for leaf in leaves if split_key(leaf)[: len(parts)] == parts]
    return unique_keys(found)


def _promise(leaf: LeafSpec | None) -> object:
    """What a spec promises, whatever part of the env it belongs to."""
    if leaf is None:
        return None
    return leaf.kind, leaf.shape, leaf.dtype, leaf.device, leaf.domain


def _same_values(old: LeafSpec, new: LeafSpec) -> bool:
    return _promise(old) == _promise(new)


def _side(leaf: LeafSpec | None) -> dict[str, Any] | None:
    if leaf is None:
        return None
    return {name: value for name, value in leaf.to_dict().items() if name != "key"}

"""Compare the specs of an env before and after its chain, and around each stage."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from tdx.foundation.errors import KeyNotFoundError, did_you_mean
from tdx.foundation.keys import NestedKey, format_key
from tdx.foundation.serialization import Entries, Entry, Result, key_entry
from tdx.specs.leaf import PARTS, Field, KnownLeaves, LeafSpec, Part, composite_leaves

if TYPE_CHECKING:
    from tdx.core import StageSpecs
    from tdx.envs import EnvBase
    from tdx.stacks.checkpoints import Checkpoint
    from tdx.stacks.stack import Stack

Change = Literal["same", "added", "gone", "changed"]


@dataclass(frozen=True, slots=True)
class KeyChange(Result):
    """Specs of one key before and after a stage or the whole chain.

    Args:
        part: Part of the env that the key belongs to.
        key: The key.
        before: Spec before; ``None`` if the key is new.
        after: Spec after; ``None`` if the key was removed.
        stages: Indices of the stages that changed the key.
    """

    json_entries: ClassVar[Entries] = (
        *("part", key_entry("key"), "change", "fields", "stages"),
        *(Entry(side, without=("part", "key")) for side in ("before", "after")),
    )

    part: Part
    key: NestedKey
    before: LeafSpec | None
    after: LeafSpec | None
    stages: tuple[int, ...] = ()

    @property
    def change(self) -> Change:
        """Kind of change."""
        if self.before is self.after:
            return "same"
        if self.before is None:
            return "added"
        if self.after is None:
            return "gone"
        return "changed" if self.fields else "same"

    @property
    def fields(self) -> tuple[Field, ...]:
        """Fields in which the two specs differ."""
        if self.before is None or self.after is None:
            return ()
        return self.before.differing_fields(self.after)


@dataclass(frozen=True, slots=True)
class StageReport(Result):
    """Changes of the specs by one stage.

    Args:
        index: Index in the chain, from 0.
        name: Class name of the transform.
        changes: Every key before and after the stage.
    """

    json_entries: ClassVar[Entries] = (
        Entry("stage", "index"),
        Entry("transform", "name"),
        Entry("keys", "changes", optional=True),
    )

    index: int
    name: str
    changes: tuple[KeyChange, ...]


@dataclass(frozen=True, slots=True)
class EnvFacts(Result):
    """Batch size and device of an env.

    Args:
        batch_size: Leading dims.
        device: Device of its tensors.
    """

    batch_size: tuple[int, ...]
    device: str

    @classmethod
    def of(cls, env: EnvBase) -> EnvFacts:
        """Return the facts about an env."""
        return cls(tuple(env.batch_size), str(env.device))

    @classmethod
    def at(cls, specs: StageSpecs) -> EnvFacts:
        """Return the facts about an env before its chain, or after a stage."""
        spec = specs.output_spec
        return cls(tuple(spec.shape), str(spec.device or "cpu"))


@dataclass(frozen=True, slots=True)
class SpecReport(Result):
    """Specs of an env before and after its chain.

    Args:
        env: Name of the env.
        before: Facts about the env without the chain.
        after: Facts about the env with the chain.
        changes: Every key before and after the whole chain.
        stages: The same for each stage.
    """

    json_entries: ClassVar[Entries] = ("env", "before", "after", Entry("keys", "changes"), "stages")

    env: str
    before: EnvFacts
    after: EnvFacts
    changes: tuple[KeyChange, ...]
    stages: tuple[StageReport, ...]

    def keys(self) -> list[NestedKey]:
        """Return every key of the env and the stages, in order of appearance."""
        changes = [*self.changes, *(change for stage in self.stages for change in stage.changes)]
        return list(dict.fromkeys(change.key for change in changes))

    def only(self, key: str) -> SpecReport:
        """Return the report restricted to one key.

        Args:
            key: The key, with dots between its parts.

        Raises:
            KeyNotFoundError: The key does not exist at any stage.
        """
        known = [format_key(one) for one in self.keys()]
        if key not in known:
            hint = did_you_mean(key, known, otherwise=f"the keys are {', '.join(known)}")
            raise KeyNotFoundError(f"unknown key {key!r}: not in the env or any stage", hint=hint)
        stages = tuple(replace(stage, changes=_select(stage.changes, key)) for stage in self.stages)
        return replace(self, changes=_select(self.changes, key), stages=stages)

    def only_changes(self) -> SpecReport:
        """Return the report without keys that do not change."""
        stages = tuple(replace(stage, changes=_changed(stage.changes)) for stage in self.stages)
        return replace(self, changes=_changed(self.changes), stages=stages)

    def to_dict(self, *, each: bool = True) -> dict[str, Any]:
        """Return the report as data that JSON can represent.

        Args:
            each: Include the changes of each stage, in addition to those of the whole chain.
        """
        data = Result.to_dict(self)
        if not each:
            for stage in data["stages"]:
                del stage["keys"]
        return data


def inspect_spec(env: object, name: str | None = None) -> SpecReport:
    """Compare the specs of an env before and after its chain, without a reset or step.

    Args:
        env: Env of tdx, with or without a chain, or a stack of another library.
        name: Name in the report. Defaults to the class name of the base env.

    Raises:
        ArgumentError: ``env`` is neither an env nor a stack.
    """
    from tdx.stacks import open_stack

    return compare_specs(open_stack(env), name)


def compare_specs(stack: Stack, name: str | None = None) -> SpecReport:
    """Compare the specs of a stack before and after its stages, without a reset or step."""
    whole = stack.specs()
    # Most stages leave most keys alone: leaves and their pairs are shared between the stages, so
    # that a chain of n stages over k keys needs no n × k objects.
    known: KnownLeaves = {}
    leaves = [composite_leaves(stage.input_spec, stage.output_spec, known) for stage in whole]
    facts = EnvFacts.at(whole[0]), EnvFacts.at(whole[-1])
    return compare_snapshots(name or stack.name, facts, [stage.name for stage in whole[1:]], leaves)


def inspect_checkpoint(checkpoint: Checkpoint) -> SpecReport:
    """Compare the specs of a checkpoint before and after its processors, without running them.

    It gives the same report as :func:`~tdx.inspection.spec_report.compare_specs` of its stack,
    without loading torch.
    """
    from tdx.stacks.checkpoints.specs import trace_specs

    snapshots = [
        [*observations.values(), *actions.values()]
        for observations, actions in trace_specs(checkpoint)
    ]
    devices = [
        str(step.config.get("device", "cpu"))
        for processor in checkpoint.processors
        for step in processor.steps
        if step.name == "device_processor"
    ]
    facts = EnvFacts((), "cpu"), EnvFacts((), devices[-1] if devices else "cpu")
    names = [step.short_name for _, step in checkpoint.stages]
    return compare_snapshots(checkpoint.name, facts, names, snapshots)


def compare_snapshots(
    env: str,
    facts: tuple[EnvFacts, EnvFacts],
    names: Sequence[str],
    leaves: Sequence[Sequence[LeafSpec]],
) -> SpecReport:
    """Compare the specs before the chain and after each of its stages, which have these names."""
    kept: KeptLeaves = {}
    stages = tuple(
        StageReport(index, name, compare_leaves(before, after, (index,), kept))
        for index, (name, (before, after)) in enumerate(zip(names, pairwise(leaves), strict=True))
    )
    touched: dict[tuple[Part, NestedKey], list[int]] = {}
    for stage in stages:
        for change in stage.changes:
            if change.stages:
                touched.setdefault((change.part, change.key), []).append(stage.index)
    changes = tuple(
        replace(change, stages=tuple(touched.get((change.part, change.key), ())))
        for change in compare_leaves(leaves[0], leaves[-1])
    )
    return SpecReport(env, *facts, changes, stages)


KeptLeaves = dict[int, KeyChange]
"""Pairs of a leaf with itself, by its id."""


def compare_leaves(
    before: Sequence[LeafSpec],
    after: Sequence[LeafSpec],
    stages: tuple[int, ...] = (),
    kept: KeptLeaves | None = None,
) -> tuple[KeyChange, ...]:
    """Pair the specs of two sides by part and key.

    ``kept`` has the pairs that were made already, and gets new ones; their leaves have to stay
    alive.
    """
    kept = {} if kept is None else kept
    old = {(leaf.part, leaf.key): leaf for leaf in before}
    new = {(leaf.part, leaf.key): leaf for leaf in after}
    added = [part_and_key for part_and_key in new if part_and_key not in old]
    # Both sides are in the order of the parts.
    rows = sorted([*old, *added], key=lambda row: PARTS.index(row[0])) if added else old
    changes: list[KeyChange] = []
    for row in rows:
        one, other = old.get(row), new.get(row)
        if one is other:
            if id(one) not in kept:
                kept[id(one)] = KeyChange(*row, one, other)
            changes.append(kept[id(one)])
            continue
        change = KeyChange(*row, one, other)
        if stages and change.change != "same":
            change = replace(change, stages=stages)
        changes.append(change)
    return tuple(changes)


def _changed(changes: Iterable[KeyChange]) -> tuple[KeyChange, ...]:
    return tuple(change for change in changes if change.change != "same")


def _select(changes: Sequence[KeyChange], key: str) -> tuple[KeyChange, ...]:
    return tuple(change for change in changes if format_key(change.key) == key)

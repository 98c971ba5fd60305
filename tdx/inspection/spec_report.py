"""What a chain makes of an env's specs, as a whole and stage by stage."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from tdx.errors import KeyNotFoundError, did_you_mean
from tdx.inspection.leaf import PARTS, LeafSpec, Part, composite_leaves
from tdx.keys import NestedKey, format_key

if TYPE_CHECKING:
    from tdx.envs import EnvBase

Change = Literal["same", "added", "gone", "changed"]
Field = Literal["kind", "shape", "dtype", "device", "domain"]
_FIELDS: tuple[Field, ...] = ("kind", "shape", "dtype", "device", "domain")


@dataclass(frozen=True, slots=True)
class KeyChange:
    """One key on both sides of a stage, or of the whole chain.

    Args:
        part: what the key is to the env.
        key: the key.
        before: its spec before, none where it is new.
        after: its spec after, none where it is gone.
        stages: the stages that changed it, from 0.
    """

    part: Part
    key: NestedKey
    before: LeafSpec | None
    after: LeafSpec | None
    stages: tuple[int, ...] = ()

    @property
    def change(self) -> Change:
        """What became of it."""
        if self.before is None:
            return "added"
        if self.after is None:
            return "gone"
        return "changed" if self.fields else "same"

    @property
    def fields(self) -> tuple[Field, ...]:
        """What differs between the two specs."""
        if self.before is None or self.after is None:
            return ()
        return tuple(
            name for name in _FIELDS if getattr(self.before, name) != getattr(self.after, name)
        )

    def to_dict(self) -> dict[str, Any]:
        """As plain data."""
        return {
            "part": self.part,
            "key": format_key(self.key),
            "change": self.change,
            "fields": list(self.fields),
            "stages": list(self.stages),
            "before": _side(self.before),
            "after": _side(self.after),
        }


@dataclass(frozen=True, slots=True)
class StageReport:
    """What one stage did to the specs.

    Args:
        index: place in the chain, from 0.
        name: class name of the transform.
        changes: every key before and after it.
    """

    index: int
    name: str
    changes: tuple[KeyChange, ...]

    def to_dict(self) -> dict[str, Any]:
        """As plain data."""
        return {
            "stage": self.index,
            "transform": self.name,
            "keys": [change.to_dict() for change in self.changes],
        }


@dataclass(frozen=True, slots=True)
class EnvFacts:
    """What holds for an env as a whole.

    Args:
        batch_size: its leading dims.
        device: where its tensors live.
    """

    batch_size: tuple[int, ...]
    device: str

    @classmethod
    def of(cls, env: EnvBase) -> EnvFacts:
        """The facts of an env."""
        return cls(tuple(env.batch_size), str(env.device))

    def to_dict(self) -> dict[str, Any]:
        """As plain data."""
        return {"batch_size": list(self.batch_size), "device": self.device}


@dataclass(frozen=True, slots=True)
class SpecReport:
    """The specs of an env before and after its chain.

    Args:
        env: name of the env.
        before: the env without the chain.
        after: the env with it.
        changes: every key before and after the whole chain.
        stages: the same for each stage alone.
    """

    env: str
    before: EnvFacts
    after: EnvFacts
    changes: tuple[KeyChange, ...]
    stages: tuple[StageReport, ...]

    def keys(self) -> list[NestedKey]:
        """Every key that exists somewhere in the chain, in order of appearance."""
        return list(dict.fromkeys(change.key for change in self._all_changes()))

    def only(self, key: str) -> SpecReport:
        """The same report with nothing but one key in it.

        Args:
            key: the key, its parts with dots between.

        Raises:
            KeyNotFoundError: there is no such key at any stage.
        """
        known = [format_key(one) for one in self.keys()]
        if key not in known:
            hint = did_you_mean(key, known, otherwise=f"the keys are {', '.join(known)}")
            raise KeyNotFoundError(f"no key {key!r} in the env or after any stage", hint=hint)
        stages = tuple(
            StageReport(stage.index, stage.name, _with_key(stage.changes, key))
            for stage in self.stages
        )
        return SpecReport(self.env, self.before, self.after, _with_key(self.changes, key), stages)

    def _all_changes(self) -> Iterable[KeyChange]:
        yield from self.changes
        for stage in self.stages:
            yield from stage.changes

    def to_dict(self, *, each: bool = True) -> dict[str, Any]:
        """As plain data.

        Args:
            each: whether each stage has its own changes, beside those of the whole chain.
        """
        stages = [stage.to_dict() for stage in self.stages]
        if not each:
            for stage in stages:
                del stage["keys"]
        return {
            "env": self.env,
            "before": self.before.to_dict(),
            "after": self.after.to_dict(),
            "keys": [change.to_dict() for change in self.changes],
            "stages": stages,
        }


def inspect_spec(env: EnvBase, name: str | None = None) -> SpecReport:
    """Compare the specs of an env before and after its chain; nothing is reset or stepped.

    Args:
        env: the env, transformed or not.
        name: what to call it; by default the class of the innermost env.

    Returns:
        Every key with its spec on both sides, and the same for each stage.
    """
    from tdx.core import stage_specs

    base = innermost(env)
    whole = stage_specs(env)
    leaves = [composite_leaves(stage.input_spec, stage.output_spec) for stage in whole]
    stages = tuple(
        StageReport(index, stage.name, compare_leaves(leaves[index], leaves[index + 1], (index,)))
        for index, stage in enumerate(whole[1:])
    )
    changes = _attributed(compare_leaves(leaves[0], leaves[-1]), stages)
    return SpecReport(
        name or type(base).__name__, EnvFacts.of(base), EnvFacts.of(env), changes, stages
    )


def innermost(env: EnvBase) -> EnvBase:
    """The env without any chain around it."""
    from tdx.core import TransformedEnv

    while isinstance(env, TransformedEnv):
        env = env.base_env
    return env


def compare_leaves(
    before: Sequence[LeafSpec], after: Sequence[LeafSpec], stages: tuple[int, ...] = ()
) -> tuple[KeyChange, ...]:
    """Pair the specs of two sides by part and key, in the order of the second side."""
    old = {(leaf.part, leaf.key): leaf for leaf in before}
    new = {(leaf.part, leaf.key): leaf for leaf in after}
    places = sorted([*old, *(place for place in new if place not in old)], key=_part_order)
    found = [KeyChange(*place, old.get(place), new.get(place)) for place in places]
    return tuple(change if change.change == "same" else _by(change, stages) for change in found)


def _part_order(place: tuple[Part, NestedKey]) -> int:
    return PARTS.index(place[0])


def _by(change: KeyChange, stages: tuple[int, ...]) -> KeyChange:
    return KeyChange(change.part, change.key, change.before, change.after, stages)


def _attributed(
    changes: Sequence[KeyChange], stages: Sequence[StageReport]
) -> tuple[KeyChange, ...]:
    """The changes of the whole chain with the stages that touched each key."""
    touched: dict[tuple[Part, NestedKey], list[int]] = {}
    for stage in stages:
        for change in stage.changes:
            if change.change != "same":
                touched.setdefault((change.part, change.key), []).append(stage.index)
    return tuple(
        _by(change, tuple(touched.get((change.part, change.key), ()))) for change in changes
    )


def _with_key(changes: Sequence[KeyChange], key: str) -> tuple[KeyChange, ...]:
    return tuple(change for change in changes if format_key(change.key) == key)


def _side(leaf: LeafSpec | None) -> dict[str, Any] | None:
    if leaf is None:
        return None
    return {name: value for name, value in leaf.to_dict().items() if name not in ("part", "key")}

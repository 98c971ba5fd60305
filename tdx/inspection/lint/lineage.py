"""Who writes and who reads each version of each key of a chain."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tdx.inspection.ledger import Ledger, Version
from tdx.keys import NestedKey, normalize_key, split_key

if TYPE_CHECKING:
    from tdx.inspection.lint.context import LintStage

ENV = -1
"""The writer of what the env before the chain writes."""

_KEYS_BESIDE = ("ref_key", "mask_key")
_KEPT_IN_STEP = ("StepCounter", "InitTracker", "RewardSum", "TensorDictPrimer")
_READS_ALL = ("FrameSkipTransform", "NoopResetEnv", "BatchSizeTransform", "BurnInTransform")


StageVersion = Version[int]
"""A version written, read and ended by stages, which are named by their index."""


@dataclass(frozen=True)
class Lineage:
    """Every version of every key, in the order in which they are written.

    It follows the specs stage by stage as far as they are known, also through chains that cannot
    work, where :mod:`tdx.inspection.lineage` has nothing to say.
    """

    versions: tuple[StageVersion, ...]

    @classmethod
    def of(cls, stages: Sequence[LintStage]) -> Lineage:
        """The lineage of stages whose specs are known."""
        if not stages or stages[0].before is None:
            return cls(())
        ledger = Ledger[int]()
        for key in stages[0].before.output:
            ledger.begin(key, ENV)
        for stage in stages:
            _follow(ledger, stage)
        return cls(tuple(ledger.versions))

    def of_key(self, key: NestedKey) -> Iterator[StageVersion]:
        """The versions of one key."""
        return (version for version in self.versions if version.key == key)


def _follow(ledger: Ledger[int], stage: LintStage) -> None:
    """Follow every key through one stage."""
    assert stage.before is not None
    assert stage.after is not None
    for key in _read_by(stage, ledger.current):
        ledger.read(key, stage.index)
    for key in [key for key in ledger.current if key not in stage.after.output]:
        ledger.end(key, stage.index, "renamed" if stage.name == "RenameTransform" else "dropped")
    for key in _written_by(stage):
        if key in stage.after.output:
            ledger.write(key, stage.index)


def _read_by(stage: LintStage, current: Iterable[NestedKey]) -> Iterator[NestedKey]:
    """The current keys that a stage reads; a group's key stands for all in it."""
    if stage.opaque or stage.name in _READS_ALL:
        yield from current
        return
    named = [*stage.in_keys]
    for argument in _KEYS_BESIDE:
        value = stage.arguments.get(argument)
        if isinstance(value, str | tuple):
            named.append(normalize_key(value))
    heads = {split_key(key) for key in named}
    for key in current:
        parts = split_key(key)
        if any(parts[:length] in heads for length in range(1, len(parts) + 1)):
            yield key


def _written_by(stage: LintStage) -> list[NestedKey]:
    assert stage.before is not None
    assert stage.after is not None
    new = [key for key in stage.after.output if key not in stage.before.output]
    pairs = [] if stage.name in _KEPT_IN_STEP else stage.out_keys
    return list(dict.fromkeys([*pairs, *new]))


__all__ = ["ENV", "Lineage", "StageVersion"]

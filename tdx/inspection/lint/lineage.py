"""Who writes and who reads each version of each key of a chain."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from tdx.keys import NestedKey, key_parts, normal_key

if TYPE_CHECKING:
    from tdx.inspection.lint.context import LintStage

How = Literal["overwritten", "dropped", "renamed"]
ENV = -1
"""The writer of what the env before the chain writes."""

_KEYS_BESIDE = ("ref_key", "mask_key")
_KEPT_IN_STEP = ("StepCounter", "InitTracker", "RewardSum", "TensorDictPrimer")
_READS_ALL = ("FrameSkipTransform", "NoopResetEnv", "BatchSizeTransform", "BurnInTransform")


@dataclass
class Version:
    """One value that a key has on its way through the chain.

    Args:
        key: the key.
        number: 0 for what the env writes or what is written first, then 1, 2, ….
        writer: the stage that writes it, or -1 for the env.
        readers: the stages that read it.
        ended_by: the stage after which it is gone; none where it leaves the chain.
        how: what that stage does to it.
    """

    key: NestedKey
    number: int
    writer: int
    readers: list[int] = field(default_factory=list)
    ended_by: int | None = None
    how: How | None = None


@dataclass(frozen=True)
class Lineage:
    """Every version of every key, in the order in which they are written."""

    versions: tuple[Version, ...]

    @classmethod
    def of(cls, stages: Sequence[LintStage]) -> Lineage:
        """The lineage of stages whose specs are known."""
        if not stages or stages[0].before is None:
            return cls(())
        walk = _Walk([Version(key, 0, ENV) for key in stages[0].before.output])
        for stage in stages:
            walk.take(stage)
        return cls(tuple(walk.versions))

    def of_key(self, key: NestedKey) -> Iterator[Version]:
        """The versions of one key."""
        return (version for version in self.versions if version.key == key)


class _Walk:
    def __init__(self, versions: list[Version]) -> None:
        self.versions = versions
        self.current = {version.key: version for version in versions}

    def take(self, stage: LintStage) -> None:
        """Follow every key through one stage."""
        assert stage.before is not None
        assert stage.after is not None
        for key in self._read_by(stage):
            if stage.index not in self.current[key].readers:
                self.current[key].readers.append(stage.index)
        written = [key for key in _written_by(stage) if key in stage.after.output]
        for key in [key for key in self.current if key not in stage.after.output]:
            self._end(key, stage, "renamed" if stage.name == "RenameTransform" else "dropped")
        for key in written:
            number = sum(version.key == key for version in self.versions)
            if key in self.current:
                self._end(key, stage, "overwritten")
            self.current[key] = Version(key, number, stage.index)
            self.versions.append(self.current[key])

    def _end(self, key: NestedKey, stage: LintStage, how: How) -> None:
        version = self.current.pop(key)
        version.ended_by, version.how = stage.index, how

    def _read_by(self, stage: LintStage) -> Iterator[NestedKey]:
        """The current keys that a stage reads; a group's key stands for all in it."""
        if stage.opaque or stage.name in _READS_ALL:
            yield from self.current
            return
        named = [*stage.in_keys]
        for argument in _KEYS_BESIDE:
            value = stage.arguments.get(argument)
            if isinstance(value, str | tuple):
                named.append(normal_key(value))
        heads = {key_parts(key) for key in named}
        for key in self.current:
            parts = key_parts(key)
            if any(parts[:length] in heads for length in range(1, len(parts) + 1)):
                yield key


def _written_by(stage: LintStage) -> list[NestedKey]:
    assert stage.before is not None
    assert stage.after is not None
    new = [key for key in stage.after.output if key not in stage.before.output]
    pairs = [] if stage.name in _KEPT_IN_STEP else stage.out_keys
    return list(dict.fromkeys([*pairs, *new]))


__all__ = ["ENV", "Lineage", "Version"]

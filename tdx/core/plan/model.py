"""What a plan is made of: plain data, to be shown and to be followed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tdx.keys import NestedKey, format_key

Executor = Literal["planned", "eager"]
When = Literal["now", "later", "fused"]


@dataclass(frozen=True, slots=True)
class Version:
    """One value that a key has on its way through the chain: each write makes a new one.

    Args:
        key: the key.
        number: 0 for what the env before the chain returns, or the first write.
        writer: the index of the stage that writes it; -1 for the env.
        readers: the indices of the stages that read it.
        policy: whether the policy reads it.
        final: whether it comes out at the end of the chain.
    """

    key: NestedKey
    number: int
    writer: int
    readers: tuple[int, ...] = ()
    policy: bool = False
    final: bool = False

    @property
    def name(self) -> str:
        """The version as it is printed: ``observation@2``."""
        return f"{format_key(self.key)}@{self.number}"

    @property
    def dead(self) -> bool:
        """Whether nobody reads it and it does not come out: the write is in vain."""
        return not self.readers and not self.policy and not self.final


@dataclass(frozen=True, slots=True)
class PlanStage:
    """One stage, and when it runs.

    Args:
        index: its place in the chain, from 0.
        name: the transform's class name.
        behaviour: its time behaviour: ``pointwise``, ``scan`` or ``control``.
        when: ``now`` for step by step, ``later`` for once a chunk, ``fused`` for frame by frame
            as they arrive, with its neighbours as one map.
        why: what makes it run now, or lets it wait.
        reads: the versions that it reads, as they are printed.
        writes: the versions that it writes.
        drops: the keys that it takes away.
        inverse: the keys that it maps on the way in.
    """

    index: int
    name: str
    behaviour: str
    when: When
    why: str
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    drops: tuple[str, ...]
    inverse: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """How a rollout of an env runs.

    Args:
        env: the env before the chain, as it is named.
        executor: ``planned``, or ``eager`` where something forbids any other way.
        why_eager: what forbids it; empty if nothing does.
        rows: how the env is stepped: ``raw`` without TensorDicts, or ``tensordict``.
        stages: the stages in order.
        versions: every version of every key, in the order they are written.
        policy_reads: the keys that the policy reads; ``None`` for open-loop actions.
    """

    env: str
    executor: Executor
    why_eager: str
    rows: Literal["raw", "tensordict"]
    stages: tuple[PlanStage, ...]
    versions: tuple[Version, ...]
    policy_reads: tuple[str, ...] | None = None

    @property
    def dead(self) -> tuple[Version, ...]:
        """The versions that are written in vain."""
        return tuple(version for version in self.versions if version.dead)

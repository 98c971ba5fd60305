"""How a rollout of an env would run: what runs step by step, what waits, and why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tdx.core.plan import Plan, PlanStage, Version, plan_of
from tdx.errors import KeyNotFoundError, did_you_mean
from tdx.keys import NestedKey, format_key, normalize_key, split_key

if TYPE_CHECKING:
    from tdx.envs import EnvBase

ENV = "env"
POLICY = "policy"
OUTPUT = "output"


@dataclass(frozen=True, slots=True)
class PlanReport:
    """A plan, and what is needed to show it.

    Args:
        env: name of the env.
        actions: the keys of the actions that the chain is given.
        plan: the plan.
    """

    env: str
    actions: tuple[NestedKey, ...]
    plan: Plan

    @property
    def now(self) -> tuple[PlanStage, ...]:
        """The stages that run step by step."""
        return tuple(stage for stage in self.plan.stages if stage.when == "now")

    @property
    def later(self) -> tuple[PlanStage, ...]:
        """The stages that run once a chunk."""
        return tuple(stage for stage in self.plan.stages if stage.when == "later")

    @property
    def by_time(self) -> dict[str, tuple[PlanStage, ...]]:
        """The stages by when they run."""
        times = dict.fromkeys(stage.when for stage in self.plan.stages)
        return {
            time: tuple(stage for stage in self.plan.stages if stage.when == time) for time in times
        }

    @property
    def acts_by_chunk(self) -> bool:
        """Whether actions are drawn and mapped for a whole chunk at once, not step by step."""
        plan = self.plan
        # A stage that runs now for nobody may draw random numbers of its own in between.
        return plan.executor == "planned" and plan.policy_reads is None and not self.now

    def place(self, index: int) -> str:
        """Who writes or reads, as it is printed: ``env``, or ``0 CatFrames``."""
        return ENV if index < 0 else f"{index} {self.plan.stages[index].name}"

    def readers(self, version: Version) -> tuple[str, ...]:
        """Who reads a version: stages, then the policy, then whoever gets the output."""
        ends = [name for name, yes in ((POLICY, version.policy), (OUTPUT, version.final)) if yes]
        return (*map(self.place, version.readers), *ends)

    def to_dict(self) -> dict[str, Any]:
        """As plain data."""
        plan = self.plan
        return {
            "env": self.env,
            "executor": plan.executor,
            "why_eager": plan.why_eager or None,
            "rows": plan.rows,
            "policy_reads": None if plan.policy_reads is None else list(plan.policy_reads),
            "actions": [format_key(key) for key in self.actions],
            "acts_by": "chunk" if self.acts_by_chunk else "step",
            "stages": [_stage_dict(stage) for stage in plan.stages],
            "versions": [self._version_dict(version) for version in plan.versions],
        }

    def _version_dict(self, version: Version) -> dict[str, Any]:
        return {
            "version": version.name,
            "key": format_key(version.key),
            "number": version.number,
            "writer": self.place(version.writer),
            "readers": list(self.readers(version)),
            "dead": version.dead,
        }


def _stage_dict(stage: PlanStage) -> dict[str, Any]:
    return {
        "stage": stage.index,
        "transform": stage.name,
        "time_behaviour": stage.behaviour,
        "when": stage.when,
        "why": stage.why,
        "reads": list(stage.reads),
        "writes": list(stage.writes),
        "drops": list(stage.drops),
        "inverse": list(stage.inverse),
    }


def inspect_plan(
    env: EnvBase,
    name: str | None = None,
    *,
    policy_reads: Sequence[NestedKey] | None = None,
) -> PlanReport:
    """Say how a rollout of an env would run; nothing is reset or stepped.

    Args:
        env: the env, transformed or not.
        name: what to call it; by default the class of the innermost env.
        policy_reads: the keys that the policy reads, or groups of them; none for actions that
            look at nothing: random ones, or an ``ActionSequence``.

    Raises:
        KeyNotFoundError: a policy gets no such key.
        TdxError: a stage cannot take the specs before it; the error names the stage.

    Example:
        >>> from tdx import CatFrames, GymEnv, RewardSum, TransformedEnv
        >>> env = TransformedEnv(
        ...     GymEnv("Pendulum-v1"), CatFrames(4, -1, in_keys=["observation"])
        ... ).append_transform(RewardSum())
        >>> report = inspect_plan(env, policy_reads=["observation"])
        >>> [stage.name for stage in report.now], [stage.name for stage in report.later]
        (['CatFrames'], ['RewardSum'])
        >>> report.readers(report.plan.versions[0])
        ('0 CatFrames',)
    """
    reads = None if policy_reads is None else _leaves(policy_reads, policy_keys(env))
    plan = plan_of(env, reads)
    actions = tuple(map(normalize_key, env.action_keys))
    return PlanReport(name or plan.env, actions, plan)


def policy_keys(env: EnvBase) -> list[NestedKey]:
    """The keys of what an env gives to a policy: observations and done flags.

    Args:
        env: the env, transformed or not.
    """
    return [normalize_key(key) for key in (*env.observation_keys, *env.done_keys)]


def _leaves(asked: Sequence[NestedKey], known: Sequence[NestedKey]) -> list[NestedKey]:
    """The keys that were asked for, groups as all that is in them."""
    found: dict[NestedKey, None] = {}
    for key in asked:
        parts = split_key(key)
        leaves = [leaf for leaf in known if split_key(leaf)[: len(parts)] == parts]
        if not leaves:
            names = [format_key(leaf) for leaf in known]
            hint = did_you_mean(format_key(key), names, f"it gets {', '.join(names)}")
            raise KeyNotFoundError(f"a policy gets no key {format_key(key)!r}", hint=hint)
        found.update(dict.fromkeys(leaves))
    return list(found)

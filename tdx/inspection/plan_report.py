"""Report how a rollout of an env would run: per step or per chunk, and why."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, TypedDict

from tdx.core.envs.policies import ActionSequence
from tdx.core.plan import Plan, StagePlan, Version, plan_of
from tdx.core.plan.build import program_of
from tdx.core.planned.keyed_policy import keyed_policy
from tdx.core.planned.workers import why_stepwise_with
from tdx.foundation.errors import KeyNotFoundError, did_you_mean
from tdx.foundation.keys import NestedKey, format_key, normalize_key
from tdx.foundation.serialization import Entries, Entry, Result, keys_entry
from tdx.inspection.chain import expand_groups
from tdx.inspection.lineage import FlowNode, NodeKind

if TYPE_CHECKING:
    from tdx.envs import EnvBase

ENV: Final = "env"
POLICY: Final = "policy"
OUTPUT: Final = "output"


class PlanVersionEntry(TypedDict):
    """JSON entries of a version."""

    version: str
    key: str
    number: int
    writer: FlowNode
    readers: list[FlowNode]
    dead: bool


def _text_or_none(text: str) -> str | None:
    return text or None


@dataclass(frozen=True, slots=True)
class PlanReport(Result):
    """Plan of a rollout.

    Args:
        env: Name of the env.
        actions: Action keys of the chain.
        plan: The plan.
    """

    json_entries: ClassVar[Entries] = (
        *("env", Entry("executor", "plan.executor")),
        Entry("why_eager", "plan.why_eager", convert=_text_or_none),
        *(Entry("rows", "plan.rows"), Entry("policy_reads", "plan.policy_reads")),
        Entry("processes", "plan.processes"),
        Entry("why_stepwise", "plan.why_stepwise", convert=_text_or_none),
        *(keys_entry("actions"), "acts_by", Entry("stages", "plan.stages")),
        Entry("versions", "version_entries"),
    )

    env: str
    actions: tuple[NestedKey, ...]
    plan: Plan

    @property
    def immediate(self) -> tuple[StagePlan, ...]:
        """Stages that run in each step."""
        return tuple(stage for stage in self.plan.stages if stage.when == "immediate")

    @property
    def deferred(self) -> tuple[StagePlan, ...]:
        """Stages that run once per chunk."""
        return tuple(stage for stage in self.plan.stages if stage.when == "deferred")

    @property
    def by_time(self) -> dict[str, tuple[StagePlan, ...]]:
        """Stages grouped by when they run."""
        times = dict.fromkeys(stage.when for stage in self.plan.stages)
        return {
            time: tuple(stage for stage in self.plan.stages if stage.when == time) for time in times
        }

    @property
    def acts_by_chunk(self) -> bool:
        """True if actions are drawn and mapped per chunk instead of per step."""
        plan = self.plan
        # A stage that runs in each step may draw random numbers in between.
        return plan.executor == "planned" and plan.policy_reads is None and not self.immediate

    @property
    def acts_by(self) -> Literal["chunk", "step"]:
        """Unit in which actions are drawn."""
        return "chunk" if self.acts_by_chunk else "step"

    @property
    def version_entries(self) -> list[PlanVersionEntry]:
        """JSON entries of the versions."""
        return [
            {
                "version": version.name,
                "key": format_key(version.key),
                "number": version.number,
                "writer": self._node(version.writer),
                "readers": [*map(self._node, version.readers), *map(FlowNode, _ends(version))],
                "dead": version.dead,
            }
            for version in self.plan.versions
        ]

    def _node(self, index: int) -> FlowNode:
        return (
            FlowNode(ENV) if index < 0 else FlowNode("stage", index, self.plan.stages[index].name)
        )

    def place(self, index: int) -> str:
        """Return the name of a writer or reader: ``env``, or ``0 CatFrames``."""
        return ENV if index < 0 else f"{index} {self.plan.stages[index].name}"

    def readers(self, version: Version) -> tuple[str, ...]:
        """Return the readers of a version: stages, then ``policy``, then ``output``."""
        return (*map(self.place, version.readers), *_ends(version))


def _ends(version: Version) -> Iterator[NodeKind]:
    """Yield the readers of a version after the chain."""
    if version.policy:
        yield POLICY
    if version.final:
        yield OUTPUT


def inspect_plan(
    env: EnvBase,
    name: str | None = None,
    *,
    policy_reads: Sequence[NestedKey] | None = None,
    policy: Any = None,
) -> PlanReport:
    """Report how a rollout of an env would run, without a reset or step.

    Args:
        env: Env, with or without a chain.
        name: Name in the report. Defaults to the class name of the base env.
        policy_reads: Keys or groups that the policy reads. ``None``: actions do not depend on
            observations, as with random actions or an ``ActionSequence``.
        policy: The policy itself, as for ``env.rollout``; a copy is called to find out if worker
            processes can run it.

    Raises:
        KeyNotFoundError: The policy does not receive one of the keys.
        TdxError: A stage does not accept the specs before it; the error names the stage.

    Example:
        >>> from tdx import CatFrames, GymEnv, RewardSum, TransformedEnv
        >>> env = TransformedEnv(
        ...     GymEnv("Pendulum-v1"), CatFrames(4, -1, in_keys=["observation"])
        ... ).append_transform(RewardSum())
        >>> report = inspect_plan(env, policy_reads=["observation"])
        >>> [stage.name for stage in report.immediate], [stage.name for stage in report.deferred]
        (['CatFrames'], ['RewardSum'])
        >>> report.readers(report.plan.versions[0])
        ('0 CatFrames',)
    """
    if policy is not None:
        plan = _plan_with_policy(env, policy)
    else:
        reads = None if policy_reads is None else _received(policy_reads, policy_keys(env))
        plan = plan_of(env, reads)
    actions = tuple(map(normalize_key, env.action_keys))
    return PlanReport(name or plan.env, actions, plan)


def _plan_with_policy(env: EnvBase, policy: Any) -> Plan:
    if isinstance(policy, ActionSequence):
        return plan_of(env)
    keyed = keyed_policy(policy, env)
    if keyed is None:
        why = "the policy may read and write any entry"
        return replace(plan_of(env), executor="eager", why_eager=why, why_stepwise=why)
    program = program_of(env, keyed.reads)
    plan = program.plan
    if plan.processes is None or plan.why_stepwise:
        return plan
    return replace(plan, why_stepwise=why_stepwise_with(env, program, keyed))


def policy_keys(env: EnvBase) -> list[NestedKey]:
    """Return the keys that an env passes to a policy: observations and done flags."""
    return [normalize_key(key) for key in (*env.observation_keys, *env.done_keys)]


def _received(requested: Sequence[NestedKey], known: Sequence[NestedKey]) -> list[NestedKey]:
    """Replace groups by the keys in them; each must be known."""
    for key in requested:
        if not expand_groups([key], known):
            names = [format_key(leaf) for leaf in known]
            hint = did_you_mean(format_key(key), names, f"it receives {', '.join(names)}")
            raise KeyNotFoundError(
                f"the policy does not receive the key {format_key(key)!r}", hint=hint
            )
    return expand_groups(requested, known)

"""Input of the lint rules for stacks of other libraries: specs, and what a few steps showed."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch
from torch import Tensor

from tdx.inspection.leaf import LeafSpec, composite_leaves
from tdx.inspection.value_stats import ValueViolation
from tdx.keys import NestedKey

if TYPE_CHECKING:
    from tdx.core import StepTrace, ValueVersion
    from tdx.stacks import Stack, StageInfo

MAX_CHECK_STEPS = 1_000
MAX_CHECK_SECONDS = 2.0
MIN_PAIRS = 5
"""Rewards that are compared before a stage counts as one that scales them."""
State = Mapping[int, Mapping[str, Tensor]]


@dataclass
class StageFacts:
    """What one stage did in the steps of a check.

    Args:
        writes: Keys that it wrote, by direction.
        rewards: Reward before and after it, of each step of the first sub-env.
        hidden_truncation: Number of steps in which it cleared ``truncated``.
    """

    writes: dict[str, dict[NestedKey, None]] = field(
        default_factory=lambda: {"forward": {}, "inverse": {}}
    )
    rewards: list[tuple[float, float]] = field(default_factory=list)
    hidden_truncation: int = 0

    @property
    def scales_reward(self) -> bool:
        """True if it multiplied every reward by the same factor other than 1."""
        factors = [after / before for before, after in self.rewards if abs(before) > 1e-6]
        if len(factors) < MIN_PAIRS:
            return False
        low, high = min(factors), max(factors)
        return abs(high - low) <= 1e-5 * abs(high) and abs(high - 1) > 1e-6


@dataclass
class StackContext:
    """Input of the rules.

    Args:
        stack: The stack.
        evaluation: True if the env is used for evaluation, not for training.
        leaves: Specs before the chain and after each stage.
        facts: What each stage did in the steps.
        before: State of each stage before the steps.
        after: State of each stage after the steps.
        steps: Number of steps.
        row_steps: Number of steps of all sub-envs.
        reset_rows: Number of them that only reset a sub-env.
        violations: Values outside of their spec.
    """

    subject: ClassVar[Literal["stack"]] = "stack"

    stack: Stack
    evaluation: bool = False
    leaves: Sequence[Mapping[NestedKey, LeafSpec]] = ()
    facts: dict[int, StageFacts] = field(default_factory=dict)
    before: State = field(default_factory=dict)
    after: State = field(default_factory=dict)
    steps: int = 0
    row_steps: int = 0
    reset_rows: int = 0
    violations: Sequence[ValueViolation] = ()

    @property
    def stages(self) -> Sequence[StageInfo]:
        """Stages of the stack, innermost first."""
        return self.stack.stages

    def facts_of(self, stage: StageInfo) -> StageFacts:
        """Return what a stage did."""
        return self.facts.get(stage.index, StageFacts())

    def writes(self, stage: StageInfo, group: str) -> bool:
        """Return True if a stage wrote a key, or one of the group of this name."""
        facts = self.facts_of(stage)
        keys = [key for part in facts.writes.values() for key in part]
        return any(key == group or (isinstance(key, tuple) and key[0] == group) for key in keys)

    def is_normalizer(self, stage: StageInfo) -> bool:
        """Return True if a stage keeps a running mean and variance."""
        names = [name.rpartition(".")[2] for name in self.after.get(stage.index, {})]
        return "var" in names and "mean" in names

    def learns(self, stage: StageInfo) -> bool:
        """Return True if the running statistics of a stage changed in the steps."""
        return any(name.rpartition(".")[2] in ("mean", "var") for name in self.changed_state(stage))

    def changed_state(self, stage: StageInfo) -> Iterator[str]:
        """Yield the names of the state that changed in the steps."""
        before = self.before.get(stage.index, {})
        for name, value in self.after.get(stage.index, {}).items():
            old = before.get(name)
            if old is None or old.shape != value.shape or not torch.equal(old, value):
                yield name

    def counted(self, stage: StageInfo) -> float | None:
        """Return how many values the running statistics of a stage counted; ``None`` if unknown."""
        before, after = (part.get(stage.index, {}) for part in (self.before, self.after))
        name = next((name for name in after if name.endswith(".count")), None)
        if name is None or name not in before:
            return None
        return float(after[name].sum() - before[name].sum())

    def is_stack_of_frames(self, stage: StageInfo) -> bool:
        """Return True if a stage stacks observations of several steps."""
        named = any(name in stage.arguments for name in ("stack_size", "num_stack", "n_stack"))
        return named or "framestack" in stage.name.casefold()

    def spec(self, index: int, key: NestedKey) -> LeafSpec | None:
        """Return the spec of a key after a stage; -1 for the env inside."""
        return self.leaves[index + 1].get(key) if index + 1 < len(self.leaves) else None


def observe_stack(context: StackContext, steps: int, seed: int | None, on_step: Any) -> None:
    """Reset and step a stack, and add what the stages do to the context.

    The env is stepped until it has made the given number of steps and, if a stage limits the length
    of episodes, until an episode reaches that limit.

    Args:
        context: Context to complete.
        steps: Number of steps.
        seed: Seed of the env. ``None``: do not seed.
        on_step: Called with each trace.
    """
    stack = context.stack
    context.leaves = [
        {leaf.key: leaf for leaf in composite_leaves(each.input_spec, each.output_spec)}
        for each in stack.specs()
    ]
    context.before = stack.state()
    limits = [each for stage in stack.stages if (each := step_limit(stage)) is not None]
    goal = max(steps, min(min(limits) + 1, MAX_CHECK_STEPS)) if limits else steps
    tracer = stack.tracer()
    end = time.monotonic() + MAX_CHECK_SECONDS

    ended: Tensor | None = None

    def add(trace: StepTrace) -> None:
        nonlocal ended
        _add_facts(context, trace)
        ended = _count_rows(context, trace, ended)
        on_step(trace)
        if tracer.steps >= steps and time.monotonic() > end:
            tracer.cancel()

    try:
        with stack.seeded(seed):
            tracer.run(goal, on_step=add)
    finally:
        context.steps = tracer.steps
        context.after = stack.state()


def step_limit(stage: StageInfo) -> int | None:
    """Return the number of steps after which a stage truncates an episode; ``None`` if none."""
    limit = stage.arguments.get("max_episode_steps")
    return limit if isinstance(limit, int) else None


def _add_facts(context: StackContext, trace: StepTrace) -> None:
    values: dict[NestedKey, ValueVersion] = {}
    for stage in trace.stages:
        if stage.kind == "stage":
            facts = context.facts.setdefault(stage.index, StageFacts())
            facts.writes[stage.direction].update(dict.fromkeys(stage.written))
            if stage.direction == "forward":
                _add_reward(facts, values.get("reward"), stage.written.get("reward"))
                old, new = values.get("truncated"), stage.written.get("truncated")
                if old is not None and new is not None and _clears(old.value, new.value):
                    facts.hidden_truncation += 1
        if stage.direction == "forward":
            values.update(stage.written)


def _count_rows(context: StackContext, trace: StepTrace, ended: Tensor | None) -> Tensor | None:
    """Count the sub-envs of a step, and those that it only reset; return those that ended."""
    done, reward = (trace.env_tensordict.get(name, None) for name in ("done", "reward"))
    if done is None or not done.ndim:
        return None
    if trace.phase == "step":
        context.row_steps += done.numel()
        env = next((stage for stage in trace.stages if stage.index < 0), None)
        given = None if env is None else env.written.get("reward")
        base = reward if given is None else given.value
        if ended is not None and isinstance(base, Tensor) and base.shape == ended.shape:
            # A vector env returns the reward 0 for a row that it resets.
            context.reset_rows += int((ended & (base == 0)).sum())
    return done if isinstance(done, Tensor) else None


def _add_reward(facts: StageFacts, before: ValueVersion | None, after: ValueVersion | None) -> None:
    if before is None or after is None or len(facts.rewards) > 10 * MIN_PAIRS:
        return
    if isinstance(before.value, Tensor) and isinstance(after.value, Tensor):
        pair = before.value.flatten()[:1].tolist(), after.value.flatten()[:1].tolist()
        if all(pair):
            facts.rewards.append((float(pair[0][0]), float(pair[1][0])))


def _clears(old: Any, new: Any) -> bool:
    if not isinstance(old, Tensor) or not isinstance(new, Tensor) or old.shape != new.shape:
        return False
    return bool((old.bool() & ~new.bool()).any())

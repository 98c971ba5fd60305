"""Step a stack, and collect what its stages do for the lint rules."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from torch import Tensor

from tdx.core import StepTrace, ValueVersion
from tdx.foundation.keys import NestedKey
from tdx.inspection.lint.linter import LintFinding, lint, list_notes
from tdx.inspection.lint.stack_context import (
    MIN_PAIRS,
    StackContext,
    StageFacts,
    ValueRange,
    step_limit,
)
from tdx.specs.leaf import KnownLeaves, composite_leaves

if TYPE_CHECKING:
    from tdx.core import TransformedEnv
    from tdx.core.tracing import StageTrace
    from tdx.inspection.lint.context import LintContext
    from tdx.inspection.lint.rule import Rule

CHAIN_STEPS = 20
"""Number of steps of a chain of tdx after the steps that compare values with specs."""
MAX_CHECK_STEPS = 1_000
"""Largest number of steps to reach the step limit of an episode."""
MAX_CHECK_SECONDS = 2.0
"""Time after which a check no longer waits for that limit."""


def observe_stack(
    context: StackContext, steps: int, seed: int | None, on_step: Callable[[StepTrace], Any]
) -> None:
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
    known: KnownLeaves = {}
    specs = stack.specs()
    context.leaves = [
        {leaf.key: leaf for leaf in composite_leaves(each.input_spec, each.output_spec, known)}
        for each in specs
    ]
    context.before = stack.state()
    limits = [each for stage in stack.stages if (each := step_limit(stage)) is not None]
    goal = max(steps, min(min(limits) + 1, MAX_CHECK_STEPS)) if limits else steps
    tracer = stack.tracer()
    end = time.monotonic() + MAX_CHECK_SECONDS

    ended: Tensor | None = None

    def add(trace: StepTrace) -> None:
        nonlocal ended
        if trace.phase == "reset" and tracer.steps == 0:
            _add_created_state(context)
        _add_facts(context, trace)
        ended = _count_rows(context, trace, ended)
        on_step(trace)
        if tracer.steps >= steps and time.monotonic() > end:
            tracer.cancel()

    try:
        with stack.seeded(seed):
            tracer.run(goal, on_step=add)
        context.steps = tracer.steps
    finally:
        context.after = stack.state()


def lint_chain(
    env: TransformedEnv,
    context: LintContext,
    found: Sequence[LintFinding],
    rules: Sequence[Rule],
    *,
    first: int,
    evaluation: bool,
) -> tuple[list[LintFinding], tuple[str, ...]]:
    """Step an env of tdx; return what its stages do against the rules for stacks, and notes.

    A fault that a rule for pipelines has found already is left out.

    Args:
        env: Env with its chain; it is reset and stepped.
        context: Its pipeline.
        found: Findings of the rules for pipelines.
        rules: Rules to apply.
        first: Index of the pipeline's first stage in the chain, from which findings count.
        evaluation: True if the env is used for evaluation.

    Raises:
        TdxError: The env or a stage raises.
    """
    from tdx.stacks import open_stack

    # The rules for pipelines know what stages of the catalog do.
    declared = [first + stage.index for stage in context.stages if stage.info is not None]
    observed = StackContext(open_stack(env), evaluation, declared=declared)
    stages = observed.stages
    if not stages or not any(rule.subject == observed.subject for rule in rules):
        return [], ()
    observe_stack(observed, CHAIN_STEPS, context.pipeline.env.seed, lambda _: None)
    known = {
        (each.rule.code, first + each.violation.stage)
        for each in found
        if each.violation.stage is not None
    }
    result = []
    findings = lint(observed, rules)
    for finding in findings:
        stage = finding.violation.stage
        places = (stage, finding.violation.related)
        if stage is None or any((c, at) in known for c in finding.rule.same_as for at in places):
            continue
        moved = replace(finding.violation, stage=stage - first)
        result.append(LintFinding(finding.rule, moved, stages[stage].name))
    return result, list_notes(observed, rules, findings)


def _add_created_state(context: StackContext) -> None:
    """Add the state that did not exist before the first reset."""
    before = {index: dict(values) for index, values in context.before.items()}
    for index, values in context.stack.state().items():
        known = before.setdefault(index, {})
        known.update({name: value for name, value in values.items() if name not in known})
    context.before = before


def _add_facts(context: StackContext, trace: StepTrace) -> None:
    values: dict[NestedKey, ValueVersion] = {}
    inputs: dict[NestedKey, ValueVersion] = dict(trace.given)
    inner_calls = 1
    observed = {
        key
        for leaves in context.leaves
        for key, leaf in leaves.items()
        if leaf.part == "observation"
    }
    for stage in trace.stages:
        if stage.kind in ("stage", "env"):
            facts = context.facts.setdefault(stage.index, StageFacts())
            before = values if stage.direction == "forward" else inputs
            changed = [
                key
                for key, version in stage.written.items()
                if key not in before or not _is_equal(before[key].value, version.value)
            ]
            facts.writes[stage.direction].update(dict.fromkeys(changed))
            facts.overwritten.update(dict.fromkeys(stage.overwritten))
            _add_values(facts, stage, before)
            if stage.direction == "forward":
                facts.shapes.update(
                    (key, tuple(version.value.shape))
                    for key, version in stage.written.items()
                    if isinstance(version.value, Tensor)
                )
                if trace.phase == "step":
                    facts.inner_steps.append(round(inner_calls / stage.calls))
                inner_calls = stage.calls
                known = context.leaves[max(stage.index, 0)]
                facts.drops = facts.drops or any(key in known for key in stage.dropped)
                facts.reads.update(dict.fromkeys(version.key for version in stage.read))
                _add_samples(facts, stage, {key: values[key] for key in values if key in observed})
                reward = values.get("reward")
                _add_reward(facts, reward, stage.written.get("reward", reward))
                old, new = values.get("truncated"), stage.written.get("truncated")
                if old is not None and new is not None and _clears(old.value, new.value):
                    facts.hidden_truncation += 1
        (values if stage.direction == "forward" else inputs).update(stage.written)


def _count_rows(context: StackContext, trace: StepTrace, ended: Tensor | None) -> Tensor | None:
    """Count the stepped and the only reset sub-envs of a step; return the ended ones."""
    if "truncated" not in trace.after(len(context.leaves) - 1):
        # Its sub-envs are reset within the step that ends the episode.
        return None
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


_MAX_PAIRS, _MAX_ELEMENTS = 100, 16


def _add_values(
    facts: StageFacts, stage: StageTrace, before: Mapping[NestedKey, ValueVersion]
) -> None:
    """Add the ranges of the images, and the actions, that a stage changed."""
    for key, version in stage.written.items():
        if key not in before:
            continue
        old, new = before[key].value, version.value
        if not isinstance(old, Tensor) or not isinstance(new, Tensor):
            continue
        if stage.direction == "inverse":
            if key == "action" and old.numel() and new.numel() and len(facts.actions) < _MAX_PAIRS:
                facts.actions.append((float(old.flatten()[0]), float(new.flatten()[0])))
            continue
        if not old.numel() or not new.numel() or new.is_complex():
            continue
        if new.ndim >= 2:
            pair = _range_of(old), _range_of(new)
            if key in facts.ranges:
                for known, added in zip(facts.ranges[key], pair, strict=True):
                    known.add(added)
            else:
                facts.ranges[key] = pair


def _add_samples(
    facts: StageFacts, stage: StageTrace, before: Mapping[NestedKey, ValueVersion]
) -> None:
    """Add the observations before and after a stage that keeps their shape."""
    for key, version in before.items():
        old, new = version.value, stage.written.get(key, version).value
        samples = facts.samples.setdefault(key, [])
        if not isinstance(old, Tensor) or not isinstance(new, Tensor) or len(samples) >= _MAX_PAIRS:
            continue
        if key not in stage.dropped and old.shape == new.shape and not new.is_complex():
            pair = (value.flatten()[:_MAX_ELEMENTS].double().tolist() for value in (old, new))
            samples.append((next(pair), next(pair)))


def _range_of(value: Tensor) -> ValueRange:
    low, high = value.aminmax()
    return ValueRange(float(low), float(high), str(value.dtype).removeprefix("torch."))


def _is_equal(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return one is other or (one.dtype == other.dtype and one.equal(other))
    return one is other


def _clears(old: Any, new: Any) -> bool:
    if not isinstance(old, Tensor) or not isinstance(new, Tensor) or old.shape != new.shape:
        return False
    return bool((old.bool() & ~new.bool()).any())

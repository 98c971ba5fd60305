"""Step a stack, and collect what its stages do for the lint rules."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from tdx.core import StepTrace, ValueVersion
from tdx.foundation.keys import NestedKey
from tdx.inspection.lint.linter import LintFinding, lint
from tdx.inspection.lint.rules.stacks import untriggered_stages, wrapper_without_effect
from tdx.inspection.lint.stack_context import Changes, Fact, StackContext, StageCall, step_limit
from tdx.specs.leaf import KnownLeaves, composite_leaves

if TYPE_CHECKING:
    from tdx.core import TransformedEnv
    from tdx.inspection.lint.context import LintContext
    from tdx.inspection.lint.rule import Rule

CHAIN_STEPS = 20
"""Number of steps of a chain of tdx after the steps that compare values with specs."""
MAX_CHECK_STEPS = 1_000
"""Largest number of steps to reach the step limit of an episode."""
MAX_CHECK_SECONDS = 10.0
"""Time after which a check no longer waits for that limit: for envs that are slow.

The traced steps of ordinary envs take 0.3 to 1.6 ms, so their number is the same in each run.
"""


def observe_stack(
    context: StackContext,
    rules: Sequence[Rule],
    steps: int,
    seed: int | None,
    on_step: Callable[[StepTrace], object],
) -> None:
    """Reset and step a stack, and add what the stages do to the context.

    The env is stepped until it has made the given number of steps and, if a stage limits the length
    of episodes, until an episode reaches that limit, or for 10 seconds if that takes longer.
    """
    stack = context.stack
    kinds: set[type[Fact]] = {Changes, *(kind for rule in rules for kind in rule.facts)}
    known: KnownLeaves = {}
    specs = stack.specs()
    context.leaves = [
        {leaf.key: leaf for leaf in composite_leaves(level.input_spec, level.output_spec, known)}
        for level in specs
    ]
    context.before = stack.state()
    limits = [limit for stage in stack.stages if (limit := step_limit(stage)) is not None]
    context.goal = max(steps, min(min(limits) + 1, MAX_CHECK_STEPS)) if limits else steps
    tracer = stack.tracer()
    end = time.monotonic() + MAX_CHECK_SECONDS

    def add(trace: StepTrace) -> None:
        if trace.phase == "reset" and tracer.steps == 0:
            # The state that did not exist before the first reset.
            before = {index: dict(values) for index, values in context.before.items()}
            for index, values in stack.state().items():
                for name, value in values.items():
                    before.setdefault(index, {}).setdefault(name, value)
            context.before = before
        _add_facts(context, trace, kinds)
        on_step(trace)
        if tracer.steps >= steps and time.monotonic() > end:
            tracer.cancel()

    try:
        with stack.seeded(seed):
            tracer.run(context.goal, on_step=add)
        context.steps = tracer.steps
    finally:
        context.after = stack.state()


def list_notes(
    context: StackContext, rules: Sequence[Rule], findings: Sequence[LintFinding]
) -> Iterator[str]:
    """Yield what the stages of a stack did, or had no time for, that is no finding of a rule."""
    reported = {finding.violation.stage for finding in findings}
    names = [
        f"{stage.index} {stage.name}"
        for stage in untriggered_stages(context)
        if stage.index not in reported
    ]
    if names and wrapper_without_effect in rules:
        yield f"changed nothing in {context.steps} steps: {', '.join(names)}"
    if 0 < context.steps < context.goal:
        seconds = f"{MAX_CHECK_SECONDS:g} s"
        yield f"stopped after {context.steps} of {context.goal} steps, which took over {seconds}"


def lint_chain(
    env: TransformedEnv,
    context: LintContext,
    found: Sequence[LintFinding],
    rules: Sequence[Rule],
    *,
    seed: int | None,
    first: int,
    evaluation: bool,
) -> tuple[list[LintFinding], tuple[str, ...]]:
    """Step an env of tdx; return what its stages do against the rules for stacks, and notes.

    A fault that a rule for pipelines has found already is left out. Findings count from the
    pipeline's first stage, which has the index ``first`` in the chain.
    """
    from tdx.stacks import open_stack

    # The rules for pipelines know what stages of the catalog do.
    declared = [first + stage.index for stage in context.stages if stage.info is not None]
    observed = StackContext(open_stack(env), evaluation, declared=declared)
    stages = observed.stages
    if not stages or not any(rule.subject == observed.subject for rule in rules):
        return [], ()
    observe_stack(observed, rules, CHAIN_STEPS, seed, lambda _: None)
    known = {
        (finding.rule.code, first + finding.violation.stage)
        for finding in found
        if finding.violation.stage is not None
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
    return result, tuple(list_notes(observed, rules, findings))


def _add_facts(context: StackContext, trace: StepTrace, kinds: Collection[type[Fact]]) -> None:
    values: dict[NestedKey, ValueVersion] = {}
    inputs: dict[NestedKey, ValueVersion] = dict(trace.given)
    calls_inside = 1
    for stage in trace.stages:
        is_forward = stage.direction == "forward"
        before = values if is_forward else inputs
        if stage.kind in ("stage", "env"):
            call = StageCall(context, trace, stage, before, round(calls_inside / stage.calls))
            if stage.index not in context.facts:
                context.facts[stage.index] = {kind: kind() for kind in kinds}
            for kind, fact in context.facts[stage.index].items():
                try:
                    fact.add(call)
                except Exception as error:
                    # The rule that asks for it raises, and a plugin is disabled then.
                    context.failures.setdefault(kind, error)
            if is_forward:
                calls_inside = stage.calls
        before.update(stage.written)

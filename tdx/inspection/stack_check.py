"""Check an env of any library: specs, values of random steps, and lint rules."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor

from tdx.core import StepTrace, ValueVersion
from tdx.errors import EnvError, ExitCode, TdxError, Where
from tdx.inspection.check_report import Check, CheckReport, Finding, check_env
from tdx.inspection.leaf import composite_leaves
from tdx.inspection.lint.context import MIN_PAIRS, StackContext, StageFacts, step_limit
from tdx.inspection.lint.linter import LintFinding, all_rules, lint
from tdx.inspection.values_report import ViolationCollector
from tdx.keys import NestedKey
from tdx.pipeline import EnvConfig, Pipeline, StageConfig
from tdx.pipeline.catalog import load_catalog
from tdx.pipeline.values import Dtype, Value
from tdx.stacks import open_stack

if TYPE_CHECKING:
    from tdx.core.transforms import Transform
    from tdx.envs import EnvBase
    from tdx.inspection.lint.rule import Rule
    from tdx.stacks import Stack, StageInfo


CHECK_STEPS = 50
"""Number of steps of a check; more to reach a step limit of at most 1,000 steps."""
_CHECKS: tuple[Check, ...] = ("arguments", "specs", "steps", "lints")


def check(
    env: Any,
    name: str | None = None,
    *,
    steps: int = CHECK_STEPS,
    seed: int | None = None,
    rules: Sequence[Rule] | None = None,
    evaluation: bool = False,
) -> CheckReport:
    """Check an env and its stages: specs, values of a few random steps, and lint rules.

    Args:
        env: Env of tdx or of another library; it is reset and stepped.
        name: Name in the report. Defaults to the name of the env before the chain.
        steps: Number of steps.
        seed: Seed of the env and of the actions. ``None``: do not seed.
        rules: Lint rules to apply. Defaults to all rules.
        evaluation: The env is used for evaluation: report normalizers that keep learning.

    Raises:
        ArgumentError: ``env`` is neither an env nor a stack.
        EnvError: The env or a stage raises.

    Example:
        >>> import gymnasium, tdx
        >>> env = gymnasium.wrappers.NormalizeObservation(gymnasium.make("CartPole-v1"))
        >>> env = gymnasium.wrappers.FrameStackObservation(env, 4)
        >>> [(finding.code, finding.where.stage) for finding in tdx.check(env, seed=0).findings]
        [('TDX403', 3)]
    """
    stack = open_stack(env)
    label = name or stack.name
    if stack.chain_env is not None and stack.has_pipeline_rules:
        return check_chain(stack, stack.chain_env, label, seed, _chosen(rules))
    try:
        stack.specs()
    except TdxError as raised:
        finding = Finding.from_error(raised, "specs")
        return CheckReport(label, len(stack.stages), ("specs",), (finding,))
    context, error = _observe(stack, steps, seed, evaluation)
    findings = [_from_lint(each, stack) for each in lint(context, _chosen(rules))]
    if stack.chain_env is not None:
        known = {(each.where.stage, each.where.key) for each in findings}
        chain = check_chain(stack, stack.chain_env, label, seed, ()).findings
        findings += [each for each in chain if (each.where.stage, each.where.key) not in known]
    if error is not None:
        findings.append(Finding.from_error(error, "steps"))
    findings.sort(key=_sort_key)
    return CheckReport(label, len(stack.stages), _CHECKS, tuple(findings))


def _observe(
    stack: Stack, steps: int, seed: int | None, evaluation: bool
) -> tuple[StackContext, TdxError | None]:
    context = StackContext(stack, evaluation)
    collector = ViolationCollector(stack)
    error: TdxError | None = None
    try:
        observe_stack(context, steps, seed, collector.add)
    except EnvError as raised:
        raised.at(env=stack.name)
        raise
    except TdxError as raised:
        error = raised
        if error.exit_code is not ExitCode.USAGE:
            raise
    context.violations = collector.violations()
    return context, error


def _from_lint(finding: LintFinding, stack: Stack) -> Finding:
    rule, violation = finding.rule, finding.violation
    name, file, line = None, None, None
    if violation.stage is not None and violation.stage >= 0:
        stage = stack.stages[violation.stage]
        name = stage.name
        if stage.location is not None and not _is_installed(stage.location):
            file, _, number = stage.location.rpartition(":")
            line = int(number)
    check: Check = "lints" if violation.spec_violation is None else "steps"
    return Finding(
        check,
        rule.code,
        violation.message,
        violation.hint,
        Where(violation.stage, name, violation.key, file=file, line=line),
        violation.spec_violation,
        rule.severity,
        rule.title,
        rule.paragraphs[0],
    )


def _is_installed(location: str) -> bool:
    """Return True for the source of a library, which is not where a finding is corrected."""
    return location.startswith("/") or "-packages/" in location


def _chosen(rules: Sequence[Rule] | None) -> Sequence[Rule]:
    return all_rules() if rules is None else rules


def _sort_key(finding: Finding) -> tuple[bool, int]:
    stage = finding.where.stage
    return (stage is None, stage or 0)


def check_chain(
    stack: Stack, env: EnvBase, label: str, seed: int | None, rules: Sequence[Rule]
) -> CheckReport:
    """Check the specs and steps of an env of tdx, and the lint rules of its stages.

    The arguments of a stage are those that its attributes show. A stage of another class than those
    of the catalog is treated like Python code in a pipeline.

    Args:
        stack: The stack.
        env: Its env; it is reset and stepped.
        label: Name in the report.
        seed: Seed of the env. ``None``: do not seed.
        rules: Lint rules to apply.

    Raises:
        EnvError: The env raises in a reset or step.
    """
    from tdx.core import TransformedEnv
    from tdx.core.chain import chain_stages
    from tdx.core.transforms import Compose

    configs = [_describe(*pair) for pair in zip(stack.stages, chain_stages(env), strict=True)]
    if not isinstance(env, TransformedEnv):
        env = TransformedEnv(env, Compose())
    # The rules see the outermost chain; those inside are part of the env.
    own = configs[len(configs) - len(env.stages) :]
    return check_env(env, Pipeline(EnvConfig(label, seed=seed), tuple(own)), rules)


def _describe(stage: StageInfo, transform: Transform) -> StageConfig:
    """Return a stage as the pipeline would write it."""
    import tdx.transforms

    known = load_catalog().find(stage.name)
    if known is None or getattr(tdx.transforms, stage.name, None) is not type(transform):
        return StageConfig(f"python:{stage.name}")
    names = {each.name for each in known.parameters}
    if list(transform.in_keys) == list(known.default_in_keys or ()):
        names.discard("in_keys")
    values = {name: _to_value(each) for name, each in stage.arguments.items() if name in names}
    return StageConfig(stage.name, (), {k: v for k, v in values.items() if v is not None})


def _to_value(value: object) -> Value:
    """Return an argument as a value of a pipeline; ``None`` if it has no such form."""
    import torch

    if isinstance(value, torch.dtype):
        return Dtype(str(value).removeprefix("torch."))
    if isinstance(value, torch.device):
        return str(value)
    if isinstance(value, Mapping):
        return {str(name): _to_value(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return tuple(_to_value(each) for each in value)
    return value if isinstance(value, str | int | float | bool) else None


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
    finally:
        context.steps = tracer.steps
        context.after = stack.state()


def _add_created_state(context: StackContext) -> None:
    """Add the state that did not exist before the first reset."""
    before = {index: dict(values) for index, values in context.before.items()}
    for index, values in context.stack.state().items():
        known = before.setdefault(index, {})
        known.update({name: value for name, value in values.items() if name not in known})
    context.before = before


def _add_facts(context: StackContext, trace: StepTrace) -> None:
    values: dict[NestedKey, ValueVersion] = {}
    for stage in trace.stages:
        if stage.kind in ("stage", "env"):
            facts = context.facts.setdefault(stage.index, StageFacts())
            facts.writes[stage.direction].update(dict.fromkeys(stage.written))
            facts.overwritten.update(dict.fromkeys(stage.overwritten))
            if stage.direction == "forward":
                _add_reward(facts, values.get("reward"), stage.written.get("reward"))
                old, new = values.get("truncated"), stage.written.get("truncated")
                if old is not None and new is not None and _clears(old.value, new.value):
                    facts.hidden_truncation += 1
        if stage.direction == "forward":
            values.update(stage.written)


def _count_rows(context: StackContext, trace: StepTrace, ended: Tensor | None) -> Tensor | None:
    """Count the stepped and the only reset sub-envs of a step; return the ended ones."""
    if "truncated" not in context.stack.done_keys:
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


def _clears(old: Any, new: Any) -> bool:
    if not isinstance(old, Tensor) or not isinstance(new, Tensor) or old.shape != new.shape:
        return False
    return bool((old.bool() & ~new.bool()).any())

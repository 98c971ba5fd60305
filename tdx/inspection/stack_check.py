"""Check an env of any library: values against specs, and the lint rules of its stages."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING

from tdx.core.tracing import TraceChecker
from tdx.foundation.errors import EnvError, ExitCode, TdxError, Where
from tdx.inspection.check_report import Check, CheckReport, Finding, at_source, check_env
from tdx.inspection.lint.linter import LintFinding, all_rules, lint
from tdx.inspection.lint.stack_context import StackContext
from tdx.inspection.lint.stack_observation import list_notes, observe_stack
from tdx.inspection.values_report import ViolationCollector
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
    env: object,
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
        evaluation: The env is used for evaluation: report stages that belong to training only.

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
    target = open_stack(env)
    with target.in_this_process() as stack:
        report = _check_stack(stack, name or stack.name, steps, seed, rules, evaluation=evaluation)
    return report if stack is target else replace(report, notes=(*stack.notes, *report.notes))


def _check_stack(
    stack: Stack,
    label: str,
    steps: int,
    seed: int | None,
    rules: Sequence[Rule] | None,
    *,
    evaluation: bool,
) -> CheckReport:
    chosen = all_rules() if rules is None else rules
    if stack.chain_env is not None and stack.has_pipeline_rules:
        return _check_chain(stack, stack.chain_env, label, seed, chosen, evaluation=evaluation)
    try:
        stack.specs()
    except TdxError as raised:
        finding = Finding.from_error(raised, "specs")
        unseen = tuple(stack.hidden)
        return CheckReport(label, len(stack.stages), ("specs",), (finding,), hidden=unseen)
    context = StackContext(stack, evaluation)
    collector = ViolationCollector(TraceChecker(stack))
    errors: list[Finding] = []
    try:
        observe_stack(context, chosen, steps, seed, collector.add_violations)
    except EnvError as error:
        error.at(env=stack.name)
        raise
    except TdxError as error:
        if error.exit_code is not ExitCode.USAGE:
            raise
        errors.append(Finding.from_error(error, "steps"))
    context.violations = collector.violations()
    lints = lint(context, chosen)
    findings = [Finding.from_lint_at(finding, _where(finding, stack)) for finding in lints]
    findings += errors
    if stack.chain_env is not None:
        known = {(finding.where.stage, finding.where.key) for finding in findings}
        chain = _check_chain(stack, stack.chain_env, label, seed, ()).findings
        findings += [
            finding for finding in chain if (finding.where.stage, finding.where.key) not in known
        ]
    findings.sort(key=lambda finding: (finding.where.stage is None, finding.where.stage or 0))
    hidden = [*stack.hidden]
    if context.steps and context.stages and -1 not in context.facts:
        hidden.append(
            f"{context.stages[0].name} calls neither reset nor step of the env that it holds"
        )
    return CheckReport(
        label,
        len(stack.stages),
        _CHECKS,
        tuple(findings),
        hidden=tuple(hidden),
        notes=tuple(list_notes(context, chosen, lints)),
    )


def check_on_accelerator(
    report: CheckReport, build: Callable[[], Stack], seed: int, rules: Sequence[Rule]
) -> CheckReport:
    """Add what the rules about accelerators find when the stages run on a simulated one.

    ``build`` creates a chain of tdx or TorchRL.
    """
    from tdx.inspection.lint.context import DeviceContext
    from tdx.stacks.device_calls import count_device_calls

    with ExitStack() as opened:
        stacks: list[Stack] = []

        def build_env() -> EnvBase:
            stacks.append(build())
            opened.callback(stacks[0].close)
            env = stacks[0].chain_env
            assert env is not None
            return env

        calls = count_device_calls(build_env, seed=seed)
        context = DeviceContext(calls, 0, [stage.name for stage in stacks[0].stages])
        matches = lint(context, rules)
        found = [Finding.from_lint_at(match, _where(match, stacks[0])) for match in matches]
    return report.with_accelerator(found)


def _where(finding: LintFinding, stack: Stack) -> Where:
    index, key = finding.violation.stage, finding.violation.key
    if index is None or index < 0:
        return Where(index, key=key)
    stage = stack.stages[index]
    where = Where(index, stage.name, key)
    # A rule that knows the line is more precise than the stage.
    if stage.location is None or finding.violation.location is not None:
        return where
    return at_source(where, stage.location)


def _check_chain(
    stack: Stack,
    env: EnvBase,
    label: str,
    seed: int | None,
    rules: Sequence[Rule],
    *,
    evaluation: bool = False,
) -> CheckReport:
    """Check the specs and steps of an env of tdx, and the lint rules of its stages.

    The arguments of a stage are read from its attributes. A stage whose class is not in the catalog
    is treated like Python code in a pipeline.
    """
    from tdx.core import TransformedEnv
    from tdx.core.chain import chain_stages
    from tdx.core.transforms import Compose

    configs = [_describe(*pair) for pair in zip(stack.stages, chain_stages(env), strict=True)]
    if not isinstance(env, TransformedEnv):
        env = TransformedEnv(env, Compose())
    # The rules see the outermost chain; those inside are part of the env.
    own = configs[len(configs) - len(env.stages) :]
    pipeline = Pipeline(EnvConfig(label, seed=seed), tuple(own))
    return check_env(env, pipeline, rules, seed=seed, evaluation=evaluation)


def _describe(stage: StageInfo, transform: Transform) -> StageConfig:
    """Return a stage as the pipeline would write it."""
    import tdx.transforms

    known = load_catalog().find(stage.name)
    if known is None or getattr(tdx.transforms, stage.name, None) is not type(transform):
        return StageConfig(f"python:{stage.name}")
    names = {parameter.name for parameter in known.parameters}
    if list(transform.in_keys) == list(known.default_in_keys or ()):
        names.discard("in_keys")
    values = {name: _to_value(value) for name, value in stage.arguments.items() if name in names}
    kwargs = {name: value for name, value in values.items() if value is not None}
    return StageConfig(stage.name, (), kwargs)


def _to_value(value: object) -> Value:
    """Return an argument as a value of a pipeline; ``None`` if it has no such form."""
    import torch

    if isinstance(value, torch.dtype):
        return Dtype(str(value).removeprefix("torch."))
    if isinstance(value, torch.device):
        return str(value)
    if isinstance(value, Mapping):
        return {str(name): _to_value(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return tuple(map(_to_value, value))
    return value if isinstance(value, str | int | float | bool) else None

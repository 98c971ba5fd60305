"""Check an env of any library: values against specs, and the lint rules for stacks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tdx.errors import EnvError, ExitCode, TdxError, Where
from tdx.inspection.chain_check import check_chain
from tdx.inspection.check_report import Check, CheckReport, Finding
from tdx.inspection.lint.linter import LintFinding, all_rules, lint
from tdx.inspection.lint.stack_context import StackContext
from tdx.inspection.lint.stack_observation import observe_stack
from tdx.inspection.values_report import ViolationCollector
from tdx.stacks import open_stack

if TYPE_CHECKING:
    from tdx.inspection.lint.rule import Rule
    from tdx.stacks import Stack

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
        chosen = _chosen(rules)
        return check_chain(stack, stack.chain_env, label, seed, chosen, evaluation=evaluation)
    try:
        stack.specs()
    except TdxError as raised:
        finding = Finding.from_error(raised, "specs")
        return CheckReport(label, len(stack.stages), ("specs",), (finding,))
    context, error = _observe(stack, steps, seed, evaluation)
    findings = [_from_lint(each, stack) for each in lint(context, _chosen(rules))]
    if error is not None:
        findings.append(Finding.from_error(error, "steps"))
    if stack.chain_env is not None:
        known = {(each.where.stage, each.where.key) for each in findings}
        chain = check_chain(stack, stack.chain_env, label, seed, ()).findings
        findings += [each for each in chain if (each.where.stage, each.where.key) not in known]
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

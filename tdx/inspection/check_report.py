"""Check a pipeline, its arguments, specs, steps and lint rules, and apply fixes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal, get_args

from tdx.foundation.errors import (
    ChainError,
    CheckError,
    DeviceError,
    EnvError,
    ExitCode,
    TdxError,
    Where,
)
from tdx.foundation.serialization import Entries, Entry, Result, key_entry
from tdx.foundation.text import count_text, unwrap_paragraphs
from tdx.inspection.lint.linter import (
    LintFinding,
    build_lint_context,
    import_policy,
    lint,
    rules_of,
)
from tdx.inspection.lint.rule import Fix, Severity
from tdx.pipeline.build import count_env_stages

if TYPE_CHECKING:
    from torch import nn

    from tdx.core import TransformedEnv
    from tdx.envs import EnvBase
    from tdx.inspection.lint.rule import Rule
    from tdx.pipeline import Pipeline
    from tdx.specs.violations import SpecViolation

Check = Literal["arguments", "specs", "steps", "lints", "accelerator"]
Status = Literal["passed", "skipped", "error", "warning", "suggestion"]
"""Outcome of a check: its most severe finding, if there is one."""
_SEVERITIES: tuple[Severity, ...] = ("error", "warning", "suggestion")
_RULED = ("missing", "undeclared")
"""Kinds of violations that a lint rule reports."""
CHECK_SEED = 0
"""Seed of a check without one, so that checking the same pipeline again finds the same."""
_REPORTED = (CheckError, DeviceError)
"""Errors that are reported as findings, in addition to usage errors."""


@dataclass(frozen=True, slots=True)
class Finding(Result):
    """One problem in a pipeline.

    Args:
        check: Check that found it.
        code: Code of the error or rule.
        message: What is wrong, on one line.
        hint: How to fix it.
        where: Stage, transform, key and line in the file.
        violation: Kind of spec violation, such as ``"dtype"`` or ``"bounds"``.
        severity: ``error`` (cannot work), ``warning`` (a likely mistake) or ``suggestion`` (an
            improvement).
        title: Title of the violated rule; ``None`` for an error.
        why: Rationale of the rule; ``None`` for an error.
        fix: Edit of the pipeline that resolves the finding, if there is exactly one.
    """

    json_entries: ClassVar[Entries] = (
        *("check", "code", "severity", "title", "violation"),
        *(Entry("stage", "where.stage"), Entry("transform", "where.transform")),
        *(key_entry("key", "where.key"), Entry("file", "where.file")),
        *(Entry("line", "where.line"), Entry("column", "where.column")),
        *("message", "hint", "why", "fix"),
    )

    check: Check
    code: str
    message: str
    hint: str | None
    where: Where
    violation: str | None = None
    severity: Severity = "error"
    title: str | None = None
    why: str | None = None
    fix: Fix | None = None

    @classmethod
    def from_error(cls, error: TdxError, check: Check) -> Finding:
        """Convert an error."""
        return cls(check, error.code, error.message, error.hint, error.where)

    @classmethod
    def from_violation(
        cls, violation: SpecViolation, pipeline: Pipeline, first: int = 0
    ) -> Finding:
        """Convert a spec violation; the pipeline's stages start at index ``first``."""
        where = _where(pipeline, violation.stage, first)
        where = where.merge(Where(transform=violation.transform, key=violation.key))
        # Most batched envs keep undeclared state: it is lost only if it is changed outside of them.
        severity: Severity = "suggestion" if violation.code == "carried" else "error"
        message, hint = violation.message, violation.hint
        return cls("steps", CheckError.code, message, hint, where, violation.code, severity)

    @classmethod
    def from_lint(cls, finding: LintFinding, pipeline: Pipeline, first: int = 0) -> Finding:
        """Convert a lint finding; the pipeline's stages start at index ``first``."""
        violation = finding.violation
        stage = None if violation.stage is None else first + violation.stage
        where = replace(_where(pipeline, stage, first), key=violation.key)
        return cls.from_lint_at(finding, where.merge(Where(transform=finding.transform)))

    @classmethod
    def from_lint_at(cls, finding: LintFinding, where: Where) -> Finding:
        """Convert a lint finding at a known place."""
        rule, violation = finding.rule, finding.violation
        check: Check = "lints" if violation.spec_violation is None else "steps"
        if violation.location is not None and where.file is None:
            where = at_source(where, violation.location)
        return cls(
            *(check, rule.code, violation.message, violation.hint, where, violation.spec_violation),
            *(rule.severity, rule.title, unwrap_paragraphs(rule.why)[0], violation.fix),
        )


def at_source(where: Where, location: str) -> Where:
    """Return a place with the file and line of its code.

    The source of a library is not where a finding is corrected: it is left out.
    """
    file, _, line = location.rpartition(":")
    is_own = not file.startswith("/") and "-packages/" not in file
    return replace(where, file=file, line=int(line)) if is_own and Path(file).is_file() else where


@dataclass(frozen=True, slots=True)
class CheckReport(Result):
    """Findings of all checks of a pipeline.

    Args:
        env: Id of the env.
        stages: Number of stages, including the env's own.
        checks: Checks that ran, in order.
        findings: Their findings.
        env_stages: Number of the env's own stages. They come first.
        suppressed: Number of findings that comments in the file switch off.
        hidden: What could not be checked, such as envs that a stage hides, each a sentence.
        notes: What the checks saw and does not count as a finding, each a sentence.
        parts: What was checked where that is no chain of stages, such as ``4 terms, 12 joints``.
    """

    json_entries: ClassVar[Entries] = (
        *("env", "stages", "ok"),
        *(Entry("checks", "statuses"), "findings", "suppressed", "hidden", "notes", "parts"),
    )

    env: str
    stages: int
    checks: tuple[Check, ...]
    findings: tuple[Finding, ...]
    env_stages: int = 0
    suppressed: int = 0
    hidden: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    parts: str = ""

    @property
    def subject(self) -> str:
        """What was checked, with its size.

        Example:
            >>> CheckReport("policy.onnx", 0, (), (), parts="2 joints").subject
            'policy.onnx, 2 joints'
        """
        return f"{self.env}, {self.parts or count_text(self.stages, 'stage')}"

    @property
    def requested(self) -> tuple[Check, ...]:
        """Checks that ran or were skipped; the accelerator is checked on request only."""
        checks: tuple[Check, ...] = get_args(Check)
        return tuple(check for check in checks if check != "accelerator" or check in self.checks)

    @property
    def statuses(self) -> dict[str, Status]:
        """Outcome of each requested check."""
        statuses: dict[str, Status] = {}
        for check in self.requested:
            found = {finding.severity for finding in self.findings if finding.check == check}
            passed: Status = "passed" if check in self.checks else "skipped"
            statuses[check] = next((name for name in _SEVERITIES if name in found), passed)
        return statuses

    @property
    def ok(self) -> bool:
        """True if there are no errors or warnings."""
        return not self.failed()

    def failed(self, *, strict: bool = False) -> bool:
        """Return True if there are errors or warnings.

        Args:
            strict: Count suggestions too.
        """
        return any(strict or finding.severity != "suggestion" for finding in self.findings)

    def with_accelerator(
        self, findings: Iterable[Finding], notes: Sequence[str] = ()
    ) -> CheckReport:
        """Return the report with what the run on a simulated accelerator showed."""
        found = (replace(finding, check="accelerator") for finding in findings)
        return replace(
            self,
            checks=(*self.checks, "accelerator"),
            findings=(*self.findings, *found),
            notes=(*self.notes, *notes),
        )

    def exit_code(self, *, strict: bool = False) -> ExitCode:
        """Return the exit code of a process that reports these findings.

        Args:
            strict: Count suggestions too.

        Returns:
            ``ENVIRONMENT`` if a device that is missing on this machine is the only failure.
        """
        failures = [
            finding for finding in self.findings if strict or finding.severity != "suggestion"
        ]
        if failures and all(finding.code == DeviceError.code for finding in failures):
            return ExitCode.ENVIRONMENT
        return ExitCode.FINDINGS if failures else ExitCode.OK


@dataclass(frozen=True, slots=True)
class CheckedTarget(Result):
    """The report of one of several targets.

    Args:
        target: Target as it was named or found.
        exit_code: Exit code of a check of this target alone.
        report: Its report. What could not be read or run has no checks and the error as a finding.
    """

    json_entries: ClassVar[Entries] = ("target", "exit_code", Entry("report", inline=True))

    target: str
    exit_code: int
    report: CheckReport


@dataclass(frozen=True, slots=True)
class RuleCount(Result):
    """Number of findings with one code.

    Args:
        code: Code of the error or rule.
        severity: Severity of the findings.
        count: Number of findings.
        fixable: How many of them have a fix.
        title: Title of the rule; ``None`` for an error.
    """

    code: str
    severity: Severity
    count: int
    fixable: int
    title: str | None


@dataclass(frozen=True, slots=True)
class CheckSummary(Result):
    """Reports of several targets.

    Args:
        targets: Reports in the order of the targets.
    """

    json_entries: ClassVar[Entries] = ("ok", "rules", "targets")

    targets: tuple[CheckedTarget, ...]

    @property
    def ok(self) -> bool:
        """True if no target has errors or warnings."""
        return all(target.report.ok for target in self.targets)

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Findings of all targets."""
        return tuple(finding for target in self.targets for finding in target.report.findings)

    @property
    def rules(self) -> tuple[RuleCount, ...]:
        """Number of findings by code, the most frequent first."""
        by_code: dict[tuple[str, Severity], list[Finding]] = {}
        for finding in self.findings:
            by_code.setdefault((finding.code, finding.severity), []).append(finding)
        counts = [
            RuleCount(
                *(code, severity, len(same)),
                fixable=sum(finding.fix is not None for finding in same),
                title=same[0].title,
            )
            for (code, severity), same in by_code.items()
        ]
        return tuple(sorted(counts, key=lambda rule: (-rule.count, rule.code)))


def check_pipeline(
    pipeline: Pipeline,
    *,
    allow_code: bool = False,
    rules: Sequence[Rule] | None = None,
    steps: bool = True,
    base: EnvBase | None = None,
    evaluation: bool = False,
    accelerator: bool = False,
) -> CheckReport:
    """Check a pipeline: its arguments, its specs, a few steps, and the lint rules.

    Specs, steps and rules are checked if the arguments are valid, and steps only if the specs are.
    A device that is missing on this machine is a finding; everything else is then checked on the
    CPU.

    Args:
        pipeline: The pipeline.
        allow_code: Allow importing the Python objects that it names.
        rules: Lint rules to apply. Defaults to the selection of the pipeline.
        steps: Allow stepping the env.
        base: Env that the pipeline names, if it exists already. It stays open.
        evaluation: The env is used for evaluation: report stages that belong to training only.
        accelerator: Also run the chain on a simulated accelerator.

    Raises:
        EnvError: The env cannot be made, or raises in a reset or step.
    """
    from tdx.pipeline import check_arguments
    from tdx.pipeline.build import assemble_env, check_policy
    from tdx.pipeline.envs import check_device
    from tdx.stacks.building import convert_to_env

    findings = _findings(check_arguments(pipeline, allow_code), "arguments")
    policy = _findings(check_policy(pipeline, allow_code), "arguments")
    if findings:
        return _report(pipeline, ("arguments",), [*findings, *policy])
    if policy:
        # Check the chain without the policy.
        pipeline = replace(pipeline, policy=None)
    chosen = rules_of(pipeline) if rules is None else rules
    if pipeline.env.device is not None:
        try:
            check_device(pipeline.env.device)
        except DeviceError as error:
            error.at(env=pipeline.env.id, file=pipeline.file)
            missing = Finding.from_error(error, "specs")
            hint = f"{missing.hint}; everything else was checked on the CPU"
            policy.append(replace(missing, hint=hint))
            pipeline, base = replace(pipeline, env=replace(pipeline.env, device=None)), None
    try:
        module = import_policy(pipeline, allow_code)
        env = assemble_env(pipeline, allow_code, base, convert_to_env)
    except TdxError as error:
        lints = lint(build_lint_context(pipeline), chosen)
        merged = _merge(_findings([error], "specs"), lints, pipeline)
        report = _report(pipeline, ("arguments", "specs", "lints"), merged)
    else:
        try:
            report = check_env(
                env,
                pipeline,
                chosen,
                seed=CHECK_SEED if pipeline.env.seed is None else pipeline.env.seed,
                steps=steps,
                policy=module,
                evaluation=evaluation,
            )
        finally:
            if base is None:
                env.close()
        if accelerator and not any(finding.severity == "error" for finding in report.findings):
            report = report.with_accelerator(_check_on_accelerator(pipeline, allow_code, chosen))
    return replace(report, findings=(*policy, *report.findings))


def _check_on_accelerator(
    pipeline: Pipeline, allow_code: bool, rules: Sequence[Rule]
) -> list[Finding]:
    """Run the chain on a simulated device; return the findings of the rules about it."""
    from tdx.inspection.lint.context import DeviceContext
    from tdx.pipeline.build import assemble_env
    from tdx.stacks.building import convert_to_env
    from tdx.stacks.device_calls import count_device_calls

    with ExitStack() as opened:
        first = 0

        def build() -> TransformedEnv:
            nonlocal first
            env = assemble_env(pipeline, allow_code, None, convert_to_env)
            opened.callback(env.close)
            first = count_env_stages(env, pipeline)
            return env

        seed = CHECK_SEED if pipeline.env.seed is None else pipeline.env.seed
        calls = count_device_calls(build, seed=seed)
    names = [stage.name for stage in pipeline.transforms]
    context = DeviceContext(calls, first, names, pipeline.transforms)
    return [Finding.from_lint(finding, pipeline, first) for finding in lint(context, rules)]


def check_env(
    env: TransformedEnv,
    pipeline: Pipeline,
    rules: Sequence[Rule],
    *,
    seed: int | None,
    steps: bool = True,
    policy: nn.Module | None = None,
    evaluation: bool = False,
) -> CheckReport:
    """Check the specs and steps of an env, which stays open, and the lint rules of its pipeline."""
    from tdx.inspection.lint.stack_observation import lint_chain
    from tdx.pipeline.build import add_source_line

    first = count_env_stages(env, pipeline)
    notes: tuple[str, ...] = ()
    try:
        findings, violations, stepped = _check_env(env, pipeline, seed, steps)
        context = build_lint_context(pipeline, env, policy=policy, spec_violations=violations)
        lints = lint(context, rules)
        if stepped and all(finding.violation is not None for finding in findings):
            try:
                more, notes = lint_chain(
                    env, context, lints, rules, seed=seed, first=first, evaluation=evaluation
                )
                lints += more
            except ChainError as error:
                findings += _findings([add_source_line(error, pipeline, env)], "steps")
    except EnvError as error:
        error.where = replace(error.where, env=pipeline.env.id)
        raise
    checks: tuple[Check, ...] = ("arguments", "specs", "lints")
    if stepped:
        checks = ("arguments", "specs", "steps", "lints")
    report = _report(pipeline, checks, _merge(findings, lints, pipeline, first), first)
    return replace(report, notes=notes)


def _check_env(
    env: TransformedEnv, pipeline: Pipeline, seed: int | None, steps: bool
) -> tuple[list[Finding], list[SpecViolation], bool]:
    """Return the findings of specs and steps, the violations, and whether steps were made."""
    from tdx.core.spec_check import find_spec_violations
    from tdx.pipeline import check_specs
    from tdx.pipeline.build import add_source_line

    findings = _findings(check_specs(env, pipeline), "specs")
    if findings or not steps:
        return findings, [], False
    try:
        violations = find_spec_violations(env, seed=seed)
    except TdxError as error:
        return _findings([add_source_line(error, pipeline, env)], "steps"), [], True
    first = count_env_stages(env, pipeline)
    # Rules do not cover the stages that the env itself has.
    ruled: list[SpecViolation] = []
    for violation in violations:
        stage = violation.stage
        is_in_env = stage is not None and stage < first
        if violation.code not in _RULED or is_in_env:
            findings.append(Finding.from_violation(violation, pipeline, first))
        if not is_in_env:
            # The rules count from the pipeline's first stage.
            ruled.append(violation if stage is None else replace(violation, stage=stage - first))
    return findings, ruled, True


def _merge(
    errors: Sequence[Finding], lints: Sequence[LintFinding], pipeline: Pipeline, first: int = 0
) -> list[Finding]:
    """Combine findings; a rule may replace an error at the same stage."""
    result = list(errors)
    for lint_finding in lints:
        finding = Finding.from_lint(lint_finding, pipeline, first)
        replaced = [known for known in result if _is_replaced(known, lint_finding, first)]
        if replaced:
            finding = replace(finding, check=replaced[0].check)
        result = [known for known in result if known not in replaced]
        result.append(finding)
    return sorted(result, key=lambda found: (found.where.stage is None, found.where.stage or 0))


def _is_replaced(finding: Finding, lint_finding: LintFinding, first: int) -> bool:
    stage = lint_finding.violation.stage
    if not lint_finding.rule.replaces or stage is None or finding.title is not None:
        return False
    stages = [stage]
    fix = lint_finding.violation.fix
    if fix is not None:
        # A stage that comes too early raises an error in the stage that reads its result.
        stages += [edit.to for edit in fix.edits if edit.kind == "move" and edit.to is not None]
    return finding.where.stage in [first + index for index in stages]


def _where(pipeline: Pipeline, stage: int | None, first: int) -> Where:
    """Return the location of a stage; the pipeline's stages start at index ``first``."""
    if stage is None or not first <= stage < first + len(pipeline.transforms):
        return Where(stage, file=None if stage is not None else pipeline.file)
    config = pipeline.transforms[stage - first]
    name = config.name if config.code is None else config.code.name
    return Where(stage, name, file=pipeline.file, line=config.line, column=config.column)


def _findings(errors: Sequence[TdxError], check: Check) -> list[Finding]:
    """Convert errors to findings; raise failures of the env."""
    for error in errors:
        is_usage = error.exit_code is ExitCode.USAGE and not isinstance(error, EnvError)
        if not is_usage and not isinstance(error, _REPORTED):
            raise error
    return [Finding.from_error(error, check) for error in errors]


def _report(
    pipeline: Pipeline, checks: tuple[Check, ...], findings: Sequence[Finding], env_stages: int = 0
) -> CheckReport:
    stages = env_stages + len(pipeline.transforms)
    kept: list[Finding] = []
    for finding in findings:
        index = -1 if finding.where.stage is None else finding.where.stage - env_stages
        # A comment at the stage switches findings off; errors always count.
        is_own = finding.severity != "error" and 0 <= index < len(pipeline.transforms)
        if not is_own or not finding.code.startswith(pipeline.transforms[index].ignored):
            kept.append(finding)
    suppressed = len(findings) - len(kept)
    return CheckReport(pipeline.env.id, stages, checks, tuple(kept), env_stages, suppressed)


_MAX_FIXES = 50


@dataclass(frozen=True, slots=True)
class FixedPipeline:
    """A pipeline after its fixes."""

    pipeline: Pipeline
    fixes: tuple[tuple[str, Fix], ...]


def fix_pipeline(
    pipeline: Pipeline,
    *,
    allow_code: bool = False,
    rules: Sequence[Rule] | None = None,
    strict: bool = False,
    unsafe: bool = True,
    accelerator: bool = False,
) -> FixedPipeline:
    """Apply the fixes of a pipeline one after the other, each to the result of the previous one.

    A fix after which the chain can no longer be built is skipped.

    ``strict`` applies those of suggestions too, ``unsafe`` those that change the values of the
    chain.

    Example:
        >>> from tdx.pipeline import Pipeline, format_stage
        >>> clipped = Pipeline.of("Pendulum-v1", "RewardClipping(-1, 1)", "RewardScaling(0, 0.1)")
        >>> [format_stage(stage) for stage in fix_pipeline(clipped).pipeline.transforms]
        ['RewardScaling(0, 0.1)', 'RewardClipping(-1, 1)']
    """

    def check(candidate: Pipeline) -> CheckReport:
        return check_pipeline(
            candidate, allow_code=allow_code, rules=rules, steps=False, accelerator=accelerator
        )

    def count(report: CheckReport, code: str) -> int:
        return sum(finding.code == code for finding in report.findings)

    def has_errors(report: CheckReport) -> bool:
        return any(finding.check in ("arguments", "specs") for finding in report.findings)

    fixes: list[tuple[str, Fix]] = []
    report = check(pipeline)
    previous = [pipeline]
    while len(fixes) < _MAX_FIXES:
        for finding in report.findings:
            fix = finding.fix
            if fix is None or not (unsafe or fix.safe):
                continue
            if finding.severity == "suggestion" and not strict:
                continue
            candidate = fix.applied_to(pipeline)
            # Two fixes may undo each other.
            if candidate in previous:
                continue
            after = check(candidate)
            is_resolved = count(after, finding.code) < count(report, finding.code)
            if is_resolved and has_errors(after) <= has_errors(report):
                break
        else:
            break
        pipeline, report = candidate, after
        previous.append(pipeline)
        fixes.append((finding.code, fix))
    return FixedPipeline(pipeline, tuple(fixes))

"""Whether a pipeline can be built, keeps what its specs promise, and breaks no rule."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from tdx.errors import CheckError, DeviceError, EnvError, ExitCode, TdxError, Where
from tdx.inspection.lint.registry import all_rules
from tdx.inspection.lint.run import LintFinding, lint, lint_context
from tdx.inspection.stage_text import env_stage_count
from tdx.keys import format_key

if TYPE_CHECKING:
    from tdx.core import TransformedEnv
    from tdx.core.envs.spec_findings import SpecFinding
    from tdx.inspection.lint.fix import Fix
    from tdx.inspection.lint.rule import Rule, Severity
    from tdx.pipeline import Pipeline

Check = Literal["arguments", "specs", "steps", "lints"]
_RULED = ("missing", "undeclared")
"""The lies of which a rule speaks."""
_FOUND = (CheckError, DeviceError)
"""Errors that are findings though they are none of usage."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong.

    Args:
        check: the check that found it.
        code: the stable code of its error or its rule.
        message: what is wrong, on one line.
        hint: what to do about it.
        where: the stage, the transform, the key, the line in the file.
        lie: what kind of promise is broken, such as ``"dtype"`` or ``"bounds"``.
        severity: an ``error`` cannot work, a ``warning`` is a likely mistake, and an ``advice``
            makes something better that works.
        title: the rule that is broken, in a few words; none for an error.
        why: why that rule is one; none for an error.
        fix: the edit of the pipeline that mends it, where there is just one that does.
    """

    check: Check
    code: str
    message: str
    hint: str | None
    where: Where
    lie: str | None = None
    severity: Severity = "error"
    title: str | None = None
    why: str | None = None
    fix: Fix | None = None

    @classmethod
    def of(cls, error: TdxError, check: Check) -> Finding:
        """The finding that an error speaks of."""
        return cls(check, error.code, error.message, error.hint, error.where)

    @classmethod
    def of_lie(cls, lie: SpecFinding, pipeline: Pipeline, first: int = 0) -> Finding:
        """The finding of a spec violation; the pipeline's stages are numbered from ``first``."""
        where = _where(pipeline, lie.stage, first)
        where = where.merged(Where(transform=lie.transform, key=lie.key))
        return cls("steps", CheckError.code, lie.message, lie.hint, where, lie.code)

    @classmethod
    def of_rule(cls, finding: LintFinding, pipeline: Pipeline, first: int = 0) -> Finding:
        """The finding of a broken rule; the pipeline's stages are numbered from ``first``."""
        rule, found = finding.rule, finding.found
        stage = None if found.stage is None else first + found.stage
        where = replace(_where(pipeline, stage, first), key=found.key)
        check: Check = "lints" if found.lie is None else "steps"
        return cls(
            *(check, rule.code, found.message, found.hint, where, found.lie),
            *(rule.severity, rule.title, rule.paragraphs[0], found.fix),
        )

    def to_dict(self) -> dict[str, Any]:
        """As plain data."""
        edits = None if self.fix is None else [edit.to_dict() for edit in self.fix.edits]
        return {
            "check": self.check,
            "code": self.code,
            "severity": self.severity,
            "title": self.title,
            "lie": self.lie,
            "stage": self.where.stage,
            "transform": self.where.transform,
            "key": None if self.where.key is None else format_key(self.where.key),
            "file": self.where.file,
            "line": self.where.line,
            "column": self.where.column,
            "message": self.message,
            "hint": self.hint,
            "why": self.why,
            "fix": None if self.fix is None else {"title": self.fix.title, "edits": edits},
        }


@dataclass(frozen=True, slots=True)
class CheckReport:
    """What the checks of a pipeline found.

    Args:
        env: the env's id.
        stages: how many stages its chain has, those that the env itself has included.
        checks: the checks that ran, in order.
        findings: what they found.
        env_stages: how many of the stages the env itself has. They come first.
    """

    env: str
    stages: int
    checks: tuple[Check, ...]
    findings: tuple[Finding, ...]
    env_stages: int = 0

    @property
    def ok(self) -> bool:
        """Whether nothing was found but advice."""
        return not self.failed()

    def failed(self, *, strict: bool = False) -> bool:
        """Whether something was found that is an error or a warning.

        Args:
            strict: whether advice counts too.
        """
        return any(strict or finding.severity != "advice" for finding in self.findings)

    def exit_code(self, *, strict: bool = False) -> ExitCode:
        """What a run that found this ends with.

        Args:
            strict: whether advice counts too.

        Returns:
            ``ENVIRONMENT`` where a device that is missing here is all that is wrong.
        """
        counted = [each for each in self.findings if strict or each.severity != "advice"]
        if counted and all(each.code == DeviceError.code for each in counted):
            return ExitCode.ENVIRONMENT
        return ExitCode.FINDINGS if counted else ExitCode.OK

    def to_dict(self) -> dict[str, Any]:
        """As plain data."""
        return {
            "env": self.env,
            "stages": self.stages,
            "ok": self.ok,
            "checks": list(self.checks),
            "findings": [finding.to_dict() for finding in self.findings],
        }


def check_pipeline(
    pipeline: Pipeline,
    *,
    allow_code: bool = False,
    rules: Sequence[Rule] | None = None,
    steps: bool = True,
) -> CheckReport:
    """Check a pipeline: its arguments, its specs, some steps, and the rules for chains.

    Args:
        pipeline: what to check.
        allow_code: whether Python objects that it names may be imported.
        rules: the rules that it is held against; all of them by default.
        steps: whether the env may be stepped.

    Returns:
        What was found. Specs, steps and rules are looked at where the arguments are right, and
        steps are made where the specs are. Where the env's device is missing on this machine that
        is a finding, and the rest is looked at on the CPU.

    Raises:
        EnvError: the env cannot be made, or raises when it is reset or stepped.
    """
    from tdx.pipeline import check_arguments
    from tdx.pipeline.build import check_policy

    findings = _findings(check_arguments(pipeline, allow_code), "arguments")
    policy = _findings(check_policy(pipeline, allow_code), "arguments")
    if findings:
        return _report(pipeline, ("arguments",), [*findings, *policy])
    if policy:
        # The chain is checked without it.
        pipeline = replace(pipeline, policy=None)
    chosen = all_rules() if rules is None else rules
    missing = _missing_device(pipeline)
    if missing is None:
        report = _check_built(pipeline, allow_code, chosen, steps)
        return replace(report, findings=(*policy, *report.findings))
    on_cpu = replace(pipeline, env=replace(pipeline.env, device=None))
    report = _check_built(on_cpu, allow_code, chosen, steps)
    return replace(report, findings=(*policy, missing, *report.findings))


def _missing_device(pipeline: Pipeline) -> Finding | None:
    from tdx.pipeline.envs import check_device

    if pipeline.env.device is None:
        return None
    try:
        check_device(pipeline.env.device)
    except DeviceError as error:
        error.at(env=pipeline.env.id, file=pipeline.file)
        found = Finding.of(error, "specs")
        return replace(found, hint=f"{found.hint}; the rest was looked at on the CPU")
    return None


def _check_built(
    pipeline: Pipeline, allow_code: bool, rules: Sequence[Rule], steps: bool
) -> CheckReport:
    from tdx.inspection.lint.policy import imported_policy
    from tdx.pipeline.build import assemble_env

    checks: tuple[Check, ...] = ("arguments", "specs", "lints")
    try:
        policy = imported_policy(pipeline, allow_code)
        env = assemble_env(pipeline, allow_code)
    except TdxError as error:
        broken = _findings([error], "specs")
        found = lint(lint_context(pipeline), rules)
        return _report(pipeline, checks, _merged(broken, found, pipeline))
    first = env_stage_count(env, pipeline)
    try:
        findings, lies, stepped = _checked_env(env, pipeline, steps)
        context = lint_context(pipeline, env, policy=policy, lies=lies)
        found = lint(context, rules)
    except EnvError as error:
        error.where = replace(error.where, env=pipeline.env.id)
        raise
    finally:
        env.close()
    if stepped:
        checks = ("arguments", "specs", "steps", "lints")
    return _report(pipeline, checks, _merged(findings, found, pipeline, first), first)


def _checked_env(
    env: TransformedEnv, pipeline: Pipeline, steps: bool
) -> tuple[list[Finding], list[SpecFinding], bool]:
    """What specs and steps show, the lies seen, and whether there were steps."""
    from tdx.envs.check import find_spec_lies
    from tdx.pipeline import check_specs
    from tdx.pipeline.build import add_source_line

    findings = _findings(check_specs(env, pipeline), "specs")
    if findings or not steps:
        return findings, [], False
    try:
        lies = find_spec_lies(env, seed=pipeline.env.seed)
    except TdxError as error:
        return _findings([add_source_line(error, pipeline, env)], "steps"), [], True
    first = env_stage_count(env, pipeline)
    # No rule speaks of stages that the env itself has.
    plain = [lie for lie in lies if lie.code not in _RULED or _is_of_env(lie, first)]
    ruled = [_in_pipeline(lie, first) for lie in lies if not _is_of_env(lie, first)]
    return [Finding.of_lie(lie, pipeline, first) for lie in plain], ruled, True


def _is_of_env(lie: SpecFinding, first: int) -> bool:
    """Return True if a finding is about one of the stages that the env itself has."""
    return lie.stage is not None and lie.stage < first


def _in_pipeline(lie: SpecFinding, first: int) -> SpecFinding:
    """Return the finding with its stage counted from the pipeline's first."""
    return lie if lie.stage is None else replace(lie, stage=lie.stage - first)


def _merged(
    broken: Sequence[Finding], found: Sequence[LintFinding], pipeline: Pipeline, first: int = 0
) -> list[Finding]:
    """Both, with a rule that says it better in the place of an error at the same stage."""
    result = list(broken)
    for lint_finding in found:
        finding = Finding.of_rule(lint_finding, pipeline, first)
        said = [each for each in result if _says_better(lint_finding, each, first)]
        if said:
            finding = replace(finding, check=said[0].check)
        result = [each for each in result if each not in said]
        result.append(finding)
    return sorted(result, key=_place)


def _says_better(lint_finding: LintFinding, finding: Finding, first: int) -> bool:
    stage = lint_finding.found.stage
    if not lint_finding.rule.replaces or stage is None or finding.title is not None:
        return False
    late = [stage]
    fix = lint_finding.found.fix
    if fix is not None:
        # A stage that stands too early is found out where another one meets its result.
        late += [edit.to for edit in fix.edits if edit.kind == "move" and edit.to is not None]
    return finding.where.stage in [first + index for index in late]


def _place(finding: Finding) -> tuple[bool, int]:
    stage = finding.where.stage
    return (stage is None, stage or 0)


def _where(pipeline: Pipeline, stage: int | None, first: int) -> Where:
    """Return the place of a stage of the chain, where those of the pipeline begin at ``first``."""
    if stage is None or not first <= stage < first + len(pipeline.transforms):
        return Where(stage, file=None if stage is not None else pipeline.file)
    config = pipeline.transforms[stage - first]
    name = config.name if config.code is None else config.code.name
    return Where(stage, name, file=pipeline.file, line=config.line)


def _findings(errors: Sequence[TdxError], check: Check) -> list[Finding]:
    """The errors as findings; one that says that the env failed is raised."""
    for error in errors:
        if error.exit_code is not ExitCode.USAGE and not isinstance(error, _FOUND):
            raise error
    return [Finding.of(error, check) for error in errors]


def _report(
    pipeline: Pipeline, checks: tuple[Check, ...], findings: Sequence[Finding], env_stages: int = 0
) -> CheckReport:
    stages = env_stages + len(pipeline.transforms)
    return CheckReport(pipeline.env.id, stages, checks, tuple(findings), env_stages)

"""Whether a pipeline can be built, and its env and chain keep what their specs promise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from tdx.errors import CheckError, EnvError, ExitCode, TdxError, Where
from tdx.keys import format_key

if TYPE_CHECKING:
    from tdx.envs.spec_findings import SpecFinding
    from tdx.pipeline import Pipeline

Check = Literal["arguments", "specs", "steps"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong.

    Args:
        check: the check that found it.
        code: the stable code of its error.
        message: what is wrong, on one line.
        hint: what to do about it.
        where: the stage, the transform, the key, the line in the file.
        lie: what kind of promise is broken, such as ``"dtype"`` or ``"bounds"``.
    """

    check: Check
    code: str
    message: str
    hint: str | None
    where: Where
    lie: str | None = None

    @classmethod
    def of(cls, error: TdxError, check: Check) -> Finding:
        """The finding that an error speaks of."""
        return cls(check, error.code, error.message, error.hint, error.where)

    @classmethod
    def of_lie(cls, lie: SpecFinding, pipeline: Pipeline) -> Finding:
        """The finding that a lie of a spec is."""
        file = line = None
        if lie.stage is not None and lie.stage < len(pipeline.transforms):
            file, line = pipeline.file, pipeline.transforms[lie.stage].line
        where = Where(lie.stage, lie.transform, lie.key, file=file, line=line)
        return cls("steps", CheckError.code, lie.message, lie.hint, where, lie.code)

    def to_dict(self) -> dict[str, Any]:
        """As plain data."""
        return {
            "check": self.check,
            "code": self.code,
            "lie": self.lie,
            "stage": self.where.stage,
            "transform": self.where.transform,
            "key": None if self.where.key is None else format_key(self.where.key),
            "file": self.where.file,
            "line": self.where.line,
            "column": self.where.column,
            "message": self.message,
            "hint": self.hint,
        }


@dataclass(frozen=True, slots=True)
class CheckReport:
    """What the checks of a pipeline found.

    Args:
        env: the env's id.
        stages: how many stages its chain has.
        checks: the checks that ran, in order; one that finds something is the last.
        findings: what they found.
    """

    env: str
    stages: int
    checks: tuple[Check, ...]
    findings: tuple[Finding, ...]

    @property
    def ok(self) -> bool:
        """Whether nothing was found."""
        return not self.findings

    def to_dict(self) -> dict[str, Any]:
        """As plain data."""
        return {
            "env": self.env,
            "stages": self.stages,
            "ok": self.ok,
            "checks": list(self.checks),
            "findings": [finding.to_dict() for finding in self.findings],
        }


def check_pipeline(pipeline: Pipeline, *, allow_code: bool = False) -> CheckReport:
    """Check a pipeline: its arguments, then its specs, then some steps.

    Args:
        pipeline: what to check.
        allow_code: whether Python objects that it names may be imported.

    Returns:
        What was found; a check runs only where those before it found nothing.

    Raises:
        EnvError: the env cannot be made, or raises when it is reset or stepped.
    """
    from tdx.pipeline import check_arguments

    findings = _findings(check_arguments(pipeline, allow_code), "arguments")
    if findings:
        return _report(pipeline, ("arguments",), findings)
    return _check_built(pipeline, allow_code)


def _check_built(pipeline: Pipeline, allow_code: bool) -> CheckReport:
    from tdx.envs.check import find_spec_lies
    from tdx.pipeline import check_specs
    from tdx.pipeline.build import assemble

    checks: tuple[Check, ...] = ("arguments", "specs")
    try:
        env = assemble(pipeline, allow_code)
    except TdxError as error:
        return _report(pipeline, checks, _findings([error], "specs"))
    try:
        findings = _findings(check_specs(env, pipeline), "specs")
        if not findings:
            checks = (*checks, "steps")
            lies = find_spec_lies(env, seed=pipeline.env.seed)
            findings = [Finding.of_lie(lie, pipeline) for lie in lies]
    except EnvError as error:
        error.where = replace(error.where, env=pipeline.env.id)
        raise
    finally:
        env.close()
    return _report(pipeline, checks, findings)


def _findings(errors: Sequence[TdxError], check: Check) -> list[Finding]:
    """The errors as findings; one that says that the env failed is raised."""
    for error in errors:
        if error.exit_code is not ExitCode.USAGE and not isinstance(error, CheckError):
            raise error
    return [Finding.of(error, check) for error in errors]


def _report(
    pipeline: Pipeline, checks: tuple[Check, ...], findings: Sequence[Finding]
) -> CheckReport:
    return CheckReport(pipeline.env.id, len(pipeline.transforms), checks, tuple(findings))

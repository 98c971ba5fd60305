"""Whether a pipeline can be built, and its env and chain keep what their specs promise."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from tdx.errors import TdxError, Where
from tdx.keys import format_key

if TYPE_CHECKING:
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
    """

    check: Check
    code: str
    message: str
    hint: str | None
    where: Where

    @classmethod
    def of(cls, error: TdxError, check: Check) -> Finding:
        """The finding that an error speaks of."""
        return cls(check, error.code, error.message, error.hint, error.where)

    def to_dict(self) -> dict[str, Any]:
        """As plain data."""
        return {
            "check": self.check,
            "code": self.code,
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
        What was found; a check is run only where those before it found nothing.

    Raises:
        EnvError: the env cannot be made, or raises when it is reset or stepped.
        CodeNotAllowedError: the pipeline names a Python object and that is not allowed.
    """
    env, stages = pipeline.env.id, len(pipeline.transforms)
    checks: list[Check] = []
    for check, run in (("arguments", _arguments), ("specs", _specs), ("steps", _steps)):
        raise NotImplementedError

"""What every code means: those of the rules for chains, and those of errors; loads no torch."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

from tdx import errors
from tdx.errors import TdxError, UnknownNameError, did_you_mean
from tdx.inspection.error_prose import ERROR_PROSE
from tdx.inspection.lint.registry import all_rules
from tdx.inspection.lint.rule import Rule, Severity

Kind = Literal["rule", "error"]


@dataclass(frozen=True, slots=True)
class Explanation:
    """All about one code.

    Args:
        code: the code.
        kind: whether a rule for chains or an error has it.
        name: the name of the rule, or of the class of the error.
        title: what is wrong, in a few words.
        severity: ``error``, ``warning`` or ``advice``.
        exit_code: the exit code of a process that ends with it; for a rule of ``tdx check``.
        paragraphs: why, and what to do.
        wrong: a command that shows it.
        right: the same command, mended.
        python: the module ``my_code`` that the commands name, where they need one.
    """

    code: str
    kind: Kind
    name: str
    title: str
    severity: Severity
    exit_code: int
    paragraphs: tuple[str, ...]
    wrong: str | None = None
    right: str | None = None
    python: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """As plain data."""
        return {
            "code": self.code,
            "family": self.kind,
            "name": self.name,
            "title": self.title,
            "severity": self.severity,
            "exit_code": self.exit_code,
            "why": list(self.paragraphs),
            "wrong": self.wrong,
            "right": self.right,
            "python": self.python,
        }


@cache
def explanations() -> tuple[Explanation, ...]:
    """Every code that tdx ends or answers with, in their order.

    Example:
        >>> [each.name for each in explanations()][:2]
        ['TdxError', 'ArgumentError']
    """
    told = [_of_error(kind) for kind in _error_kinds()]
    told += [_of_rule(rule) for rule in all_rules()]
    return tuple(sorted(told, key=lambda each: each.code))


def explanation(code: str) -> Explanation:
    """All about one code; letter case is ignored, and the name of an error or rule will do.

    Raises:
        UnknownNameError: there is no such code.

    Example:
        >>> explanation("tdx421").title
        'rewards are clipped before they are scaled'
    """
    wanted = code.strip().casefold()
    for each in explanations():
        if wanted in (each.code.casefold(), each.name.casefold()):
            return each
    known = [name for each in explanations() for name in (each.code, each.name)]
    begun = [name for name in known if wanted and name.casefold().startswith(wanted)]
    hint = did_you_mean(code, begun or known, "tdx explain has them all")
    raise UnknownNameError(f"no code {code}", hint=hint)


def _error_kinds() -> list[type[TdxError]]:
    members = vars(errors).values()
    return [each for each in members if isinstance(each, type) and issubclass(each, TdxError)]


def _of_error(kind: type[TdxError]) -> Explanation:
    summary = " ".join((kind.__doc__ or "").strip().splitlines()[:1])
    told = ERROR_PROSE.get(kind.code)
    return Explanation(
        kind.code,
        "error",
        kind.__name__,
        (summary[:1].lower() + summary[1:]).rstrip("."),
        "error",
        int(kind.exit_code),
        (summary,) if told is None else tuple(told.paragraphs),
        _one_line(None if told is None else told.wrong),
        _one_line(None if told is None else told.right),
    )


def _of_rule(rule: Rule) -> Explanation:
    return Explanation(
        rule.code,
        "rule",
        rule.slug,
        rule.title,
        rule.severity,
        0 if rule.severity == "advice" else 1,
        tuple(rule.paragraphs),
        _command(rule.wrong, rule),
        _command(rule.right, rule),
        None if rule.python is None else rule.python.strip("\n"),
    )


def _one_line(command: str | None) -> str | None:
    return None if command is None else " ".join(command.split())


def _command(options: str, rule: Rule) -> str:
    allowed = " --allow-code" if rule.python else ""
    return f"tdx check {' '.join(options.split())}{allowed}"

"""Mend a pipeline by the fixes of what is found in it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tdx.inspection.check_report import CheckReport, Finding, check_pipeline

if TYPE_CHECKING:
    from tdx.inspection.lint.fix import Fix
    from tdx.inspection.lint.rule import Rule
    from tdx.pipeline import Pipeline

_MOST_ROUNDS = 50


@dataclass(frozen=True, slots=True)
class Mended:
    """A pipeline after its fixes.

    Args:
        pipeline: the mended pipeline.
        fixes: the codes of what was mended, each with its fix, in the order in which they were
            made.
    """

    pipeline: Pipeline
    fixes: tuple[tuple[str, Fix], ...]


def mend(
    pipeline: Pipeline,
    *,
    allow_code: bool = False,
    rules: Sequence[Rule] | None = None,
    strict: bool = False,
) -> Mended:
    """Make the fixes of a pipeline one after the other, each on what the one before has left.

    A fix after which the chain can no longer be built is left out.

    Args:
        pipeline: what to mend.
        allow_code: whether Python objects that it names may be imported.
        rules: the rules that it is held against; all of them by default.
        strict: whether advice is followed too.

    Raises:
        EnvError: the env cannot be made.

    Example:
        >>> from tdx.pipeline import Pipeline, format_stage
        >>> clipped = Pipeline.of("Pendulum-v1", "RewardClipping(-1, 1)", "RewardScaling(0, 0.1)")
        >>> [format_stage(stage) for stage in mend(clipped).pipeline.transforms]
        ['RewardScaling(0, 0.1)', 'RewardClipping(-1, 1)']
    """

    def checked(each: Pipeline) -> CheckReport:
        return check_pipeline(each, allow_code=allow_code, rules=rules, steps=False)

    fixes: list[tuple[str, Fix]] = []
    report = checked(pipeline)
    seen = [pipeline]
    while len(fixes) < _MOST_ROUNDS:
        better = _one_mended(pipeline, report, checked, seen, strict)
        if better is None:
            break
        pipeline, report, code, fix = better
        seen.append(pipeline)
        fixes.append((code, fix))
    return Mended(pipeline, tuple(fixes))


def _one_mended(
    pipeline: Pipeline,
    report: CheckReport,
    checked: Callable[[Pipeline], CheckReport],
    seen: list[Pipeline],
    strict: bool,
) -> tuple[Pipeline, CheckReport, str, Fix] | None:
    """The pipeline after the first fix that does good."""
    for finding, fix in _fixable(report, strict):
        tried = fix.applied_to(pipeline)
        if tried in seen:
            continue
        after = checked(tried)
        if _broken(after) <= _broken(report) and _count(after, finding) < _count(report, finding):
            return tried, after, finding.code, fix
    return None


def _fixable(report: CheckReport, strict: bool) -> Iterator[tuple[Finding, Fix]]:
    for finding in report.findings:
        if finding.fix is not None and (strict or finding.severity != "advice"):
            yield finding, finding.fix


def _broken(report: CheckReport) -> bool:
    return any(finding.check in ("arguments", "specs") for finding in report.findings)


def _count(report: CheckReport, finding: Finding) -> int:
    return sum(each.code == finding.code for each in report.findings)

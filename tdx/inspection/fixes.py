"""Apply the fixes of findings to a pipeline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tdx.inspection.check_report import CheckReport, check_pipeline

if TYPE_CHECKING:
    from tdx.inspection.lint.rule import Fix, Rule
    from tdx.pipeline import Pipeline

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
) -> FixedPipeline:
    """Apply the fixes of a pipeline one after the other, each to the result of the previous one.

    A fix after which the chain can no longer be built is skipped.

    Args:
        pipeline: The pipeline.
        allow_code: Allow importing the Python objects that it names.
        rules: Lint rules to apply. Defaults to all rules.
        strict: Apply the fixes of suggestions too.
        unsafe: Apply fixes that change the values that the chain returns too.

    Raises:
        EnvError: The env cannot be made.

    Example:
        >>> from tdx.pipeline import Pipeline, format_stage
        >>> clipped = Pipeline.of("Pendulum-v1", "RewardClipping(-1, 1)", "RewardScaling(0, 0.1)")
        >>> [format_stage(stage) for stage in fix_pipeline(clipped).pipeline.transforms]
        ['RewardScaling(0, 0.1)', 'RewardClipping(-1, 1)']
    """

    def check(candidate: Pipeline) -> CheckReport:
        return check_pipeline(candidate, allow_code=allow_code, rules=rules, steps=False)

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

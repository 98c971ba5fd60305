"""The layout of what the checks found."""

from __future__ import annotations

from collections.abc import Iterator
from typing import get_args

from tdx.cli.output.view import Block, Cell, Column, Heading, Paragraph, Table, View
from tdx.inspection.check_report import Check, CheckReport, Finding

_MEANING: dict[Check, str] = {
    "arguments": "every stage is known and its arguments are of the declared types",
    "specs": "env and chain can be built, and every stage finds the keys it reads",
    "steps": "reset, step and rollout write what the specs promise",
}


def check_view(report: CheckReport) -> View:
    """Lay out what the checks of a pipeline found.

    Args:
        report: what to show.
    """

    def blocks(width: int) -> list[Block]:
        stages = f"{report.stages} stage{'' if report.stages == 1 else 's'}"
        head = Heading(report.env, stages, level=1)
        rows = [[_outcome(check, report), Cell(check), Cell(_MEANING[check])] for check in _all()]
        table = Table([Column(fixed=True), Column(fixed=True), Column()], rows)
        findings: list[Block] = [part for finding in report.findings for part in _finding(finding)]
        return [head, table, *([Heading("findings"), *findings] if findings else [])]

    records = [finding.to_dict() for finding in report.findings]
    return View("check", report.to_dict(), records, blocks)


def _all() -> tuple[Check, ...]:
    return get_args(Check)


def _outcome(check: Check, report: CheckReport) -> Cell:
    found = [finding.lie for finding in report.findings if finding.check == check]
    if found:
        lies = check == "steps" and any(lie != "nan" for lie in found)
        return Cell("lies" if lies else "wrong", "bad")
    return Cell("ok", "good") if check in report.checks else Cell("not run", "dim")


def _finding(finding: Finding) -> Iterator[Paragraph]:
    place = str(finding.where)
    lead = f"{place}: " if place else ""
    yield Paragraph([Cell(f"{finding.code} ", "bad"), Cell(lead, "name"), Cell(finding.message)])
    if finding.hint:
        yield Paragraph([Cell("hint: ", "dim"), Cell(finding.hint)], indent=7)

"""The layout of what the checks found."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING, Any, get_args

from tdx.cli.choices import CheckFormat
from tdx.cli.options import FindingsOptions
from tdx.cli.output.terminal import table_width
from tdx.cli.output.view import Block, Cell, Column, Heading, Paragraph, Style, Table, View
from tdx.cli.output.write import write
from tdx.cli.streams import json_text, write_verbatim
from tdx.errors import Where
from tdx.inspection.check_report import Check, CheckReport, Finding
from tdx.inspection.explanations import Explanation

if TYPE_CHECKING:
    from tdx.cli.commands.check import Told
    from tdx.inspection.lint.rule import Rule, Severity


_PASSED: dict[Check, str] = {
    "arguments": "every stage is known and its arguments are of the declared types",
    "specs": "env and chain can be built, and every stage finds the keys it reads",
    "steps": "reset, step and rollout write what the specs promise",
    "lints": "the chain breaks no rule; tdx explain lists the rules",
}
_SEVERITIES: tuple[Severity, ...] = ("error", "warning", "advice")
_NAMES = tuple(Finding("steps", "", "", None, Where()).to_dict())
_SEVERITY_STYLES: dict[str, Style] = {"error": "bad", "warning": "changed", "advice": "dim"}


def write_report(
    report: CheckReport,
    rules: Sequence[Rule],
    options: FindingsOptions,
    told: Told | None,
    text: str | None = None,
) -> None:
    """Write what was found, or what was mended, in the format asked for.

    Args:
        report: what was found.
        rules: the rules that it was held against.
        options: the format.
        told: what is said of a mended pipeline.
        text: the file that holds the whole pipeline, where there is one.
    """
    from tdx.cli.commands.check import narrate

    narrate(None if told is None else told.narration)
    if options.format is CheckFormat.SARIF:
        from tdx.cli.output.sarif import sarif

        log = sarif(report, [rule.code for rule in rules], text)
        sys.stdout.write(json_text(log, sys.stdout, indent=2))
    elif told is not None and told.text is not None and options.format is CheckFormat.TABLE:
        write_verbatim(told.text)
    else:
        write(check_view(report, None if told is None else told.data), options.output)


def check_view(report: CheckReport, mended: dict[str, Any] | None = None) -> View:
    """Lay out what the checks of a pipeline found.

    Args:
        report: what to show.
        mended: the mended pipeline as plain data.
    """

    def blocks(width: int) -> list[Block]:
        stages = f"{report.stages} stage{'' if report.stages == 1 else 's'}"
        head = Heading(report.env, stages, level=1)
        rows = [
            [_outcome(check, report), Cell(check), Cell(_result(check, report))] for check in _all()
        ]
        table = Table([Column(fixed=True), Column(fixed=True), Column()], rows)
        findings: list[Block] = []
        told: set[str] = set()
        for finding in report.findings:
            findings += _finding(finding, told)
            told.add(finding.code)
        return [head, table, *([Heading("findings"), *findings] if findings else [])]

    records = [finding.to_dict() for finding in report.findings]
    data = report.to_dict() if mended is None else {**report.to_dict(), "mended": mended}
    return View("check", data, records, blocks, _NAMES)


def _all() -> tuple[Check, ...]:
    return get_args(Check)


def _outcome(check: Check, report: CheckReport) -> Cell:
    """The worst severity that a check found."""
    for severity in _SEVERITIES:
        if _count(check, report, severity):
            return Cell(severity, _SEVERITY_STYLES[severity])
    return Cell("ok", "good") if check in report.checks else Cell("not run", "dim")


def _result(check: Check, report: CheckReport) -> str:
    """What a check found, or what holds where it found nothing."""
    counts = [(_count(check, report, severity), severity) for severity in _SEVERITIES]
    parts = [_counted(count, severity) for count, severity in counts if count]
    if not parts:
        return _PASSED[check] if check in report.checks else _why_not_run(report)
    if len(parts) == 1:
        return parts[0]
    return f"{sum(count for count, _ in counts)} findings: {', '.join(parts)}"


def _count(check: Check, report: CheckReport, severity: Severity) -> int:
    found = (each for each in report.findings if each.check == check)
    return sum(each.severity == severity for each in found)


def _counted(count: int, severity: Severity) -> str:
    plural = "" if count == 1 or severity == "advice" else "s"
    return f"{count} {severity}{plural}"


def _why_not_run(report: CheckReport) -> str:
    broken = next((name for name in _all() if _count(name, report, "error")), None)
    return "" if broken is None else f"the {broken} have to be right first"


def _finding(finding: Finding, told: Collection[str]) -> Iterator[Paragraph]:
    """A finding; why its rule is one is said once."""
    place = str(finding.where)
    lead = f"{place}: " if place else ""
    kind = [] if finding.title is None else [Cell(f"{finding.severity} ", "dim")]
    code = Cell(f"{finding.code} ", _SEVERITY_STYLES[finding.severity])
    yield Paragraph([code, *kind, Cell(lead, "name"), Cell(finding.message)])
    if finding.why and finding.code not in told:
        yield Paragraph([Cell("why: ", "dim"), Cell(finding.why.replace("`", ""))], indent=7)
    if finding.hint:
        yield Paragraph([Cell("hint: ", "dim"), Cell(finding.hint)], indent=7)
    if finding.fix is not None:
        yield Paragraph([Cell("fix: ", "dim"), Cell(finding.fix.title)], indent=7)


_SEVERITY_STYLES: dict[str, Style] = {"error": "bad", "warning": "changed", "advice": "dim"}


def explain_view(explained: Explanation) -> View:
    """Lay out the explanation of one code.

    Args:
        explained: what to show.
    """

    def blocks(width: int) -> list[Block]:
        head = Heading(f"{explained.code}  {explained.title}", _aside(explained), level=1)
        prose = [Paragraph([Cell(_plain(text))]) for text in explained.paragraphs]
        return [head, *prose, *_examples(explained)]

    data = explained.to_dict()
    return View("explanation", data, [data], blocks)


def codes_view(explained: Sequence[Explanation]) -> View:
    """Lay out a list of codes.

    Args:
        explained: what to show.
    """
    names = ("code", "family", "name", "severity", "title")
    records = [{name: each.to_dict()[name] for name in names} for each in explained]

    def blocks(width: int) -> list[Block]:
        rows = [
            [
                Cell(each.code, "name"),
                Cell(each.severity, _SEVERITY_STYLES[each.severity]),
                Cell(each.name, "dim"),
                Cell(_plain(each.title)),
            ]
            for each in explained
        ]
        titles = ("code", "severity", "name", "what is wrong")
        columns = [Column(title, fixed=title != "what is wrong") for title in titles]
        table = Table(columns, rows)
        if table_width(table) <= width:
            return [table]
        return [Table([columns[0], columns[3]], [[row[0], row[3]] for row in rows])]

    return View("codes", {"codes": records}, records, blocks)


def _aside(explained: Explanation) -> str:
    kind = explained.name if explained.kind == "error" else explained.severity
    return f"{kind}, exit code {explained.exit_code}"


def _examples(explained: Explanation) -> Iterator[Block]:
    if explained.python is not None:
        yield Heading("my_code.py")
        for line in explained.python.splitlines():
            yield Paragraph([Cell(line)], indent=2)
    for title, command in (("wrong", explained.wrong), ("right", explained.right)):
        if command is not None:
            yield Heading(title)
            yield Paragraph([Cell(command)], indent=2)


def _plain(text: str) -> str:
    return text.replace("`", "")

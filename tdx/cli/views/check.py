"""Views of findings, rules and error codes, and findings as SARIF 2.1.0."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args
from urllib.parse import quote

from tdx import __version__
from tdx.cli.output import table_width
from tdx.cli.views import (
    SEVERITY_STYLES,
    Block,
    Cell,
    Column,
    Heading,
    Paragraph,
    Table,
    View,
    count_text,
)
from tdx.errors import Where
from tdx.inspection.check_report import Check, CheckReport, Finding
from tdx.inspection.explanations import Explanation, explain_code

if TYPE_CHECKING:
    from tdx.inspection.check_report import CheckReport, Finding
    from tdx.inspection.explanations import Explanation
    from tdx.inspection.lint.rule import Fix, Severity


_PASSED: dict[Check, str] = {
    "arguments": "all stages exist and their arguments have the declared types",
    "specs": "the env and the chain can be built, and every stage finds the keys that it reads",
    "steps": "reset, step and rollout return values within the specs",
    "lints": "no rule is violated; tdx explain lists the rules",
}
_SEVERITIES: tuple[Severity, ...] = ("error", "warning", "suggestion")
_CHECKS: tuple[Check, ...] = get_args(Check)
_COLUMNS = tuple(Finding("steps", "", "", None, Where()).to_dict())


def check_view(report: CheckReport, fixes: dict[str, Any] | None = None) -> View:
    """Lay out the findings of a check.

    Args:
        report: Findings to show.
        fixes: Fixes of the pipeline as plain data.
    """

    def blocks(width: int) -> list[Block]:
        head = Heading(report.env, count_text(report.stages, "stage"), level=1)
        rows = [
            [_outcome(check, report), Cell(check), Cell(_result(check, report))]
            for check in _CHECKS
        ]
        table = Table([Column(fixed=True), Column(fixed=True), Column()], rows)
        findings: list[Block] = []
        explained: set[str] = set()
        for finding in report.findings:
            findings += _finding(finding, with_reason=finding.code not in explained)
            explained.add(finding.code)
        return [head, table, *([Heading("findings"), *findings] if findings else [])]

    def data() -> dict[str, Any]:
        return report.to_dict() if fixes is None else {**report.to_dict(), "fixed": fixes}

    def records() -> Iterator[dict[str, Any]]:
        return (finding.to_dict() for finding in report.findings)

    return View("check", data, records, blocks, _COLUMNS)


def _outcome(check: Check, report: CheckReport) -> Cell:
    """Return the highest severity that a check found."""
    for severity in _SEVERITIES:
        if _count(check, report, severity):
            return Cell(severity, SEVERITY_STYLES[severity])
    return Cell("ok", "good") if check in report.checks else Cell("skipped", "dim")


def _result(check: Check, report: CheckReport) -> str:
    """Return the number of findings of a check, or what it proves if there are none."""
    counts = [(_count(check, report, severity), severity) for severity in _SEVERITIES]
    parts = [count_text(count, severity) for count, severity in counts if count]
    if not parts:
        return _PASSED[check] if check in report.checks else _skip_reason(report)
    if len(parts) == 1:
        return parts[0]
    return f"{sum(count for count, _ in counts)} findings: {', '.join(parts)}"


def _count(check: Check, report: CheckReport, severity: Severity) -> int:
    found = (each for each in report.findings if each.check == check)
    return sum(each.severity == severity for each in found)


def _skip_reason(report: CheckReport) -> str:
    failed = next((name for name in _CHECKS if _count(name, report, "error")), None)
    return "" if failed is None else f"skipped because of the errors in {failed}"


def _finding(finding: Finding, *, with_reason: bool) -> Iterator[Paragraph]:
    """Yield a finding, optionally with the reason for its rule."""
    place = str(finding.where)
    lead = f"{place}: " if place else ""
    kind = [] if finding.title is None else [Cell(f"{finding.severity} ", "dim")]
    code = Cell(f"{finding.code} ", SEVERITY_STYLES[finding.severity])
    yield Paragraph([code, *kind, Cell(lead, "name"), Cell(finding.message)])
    if finding.why and with_reason:
        yield Paragraph([Cell("why: ", "dim"), Cell(finding.why.replace("`", ""))], indent=7)
    if finding.hint:
        yield Paragraph([Cell("hint: ", "dim"), Cell(finding.hint)], indent=7)
    if finding.fix is not None:
        yield Paragraph([Cell("fix: ", "dim"), Cell(finding.fix.title)], indent=7)


def explain_view(explained: Explanation) -> View:
    """Lay out the explanation of a code.

    Args:
        explained: Explanation to show.
    """

    def blocks(width: int) -> list[Block]:
        head = Heading(f"{explained.code}  {explained.title}", _aside(explained), level=1)
        prose = [Paragraph([Cell(_plain(text))]) for text in explained.paragraphs]
        return [head, *prose, *_examples(explained)]

    return View("explanation", explained.to_dict, lambda: [explained.to_dict()], blocks)


def codes_view(explained: Sequence[Explanation]) -> View:
    """Lay out a list of codes.

    Args:
        explained: Explanations to show.
    """
    names = ("code", "family", "name", "severity", "title")

    def records() -> list[dict[str, Any]]:
        return [{name: each.to_dict()[name] for name in names} for each in explained]

    def blocks(width: int) -> list[Block]:
        rows = [
            [
                Cell(each.code, "name"),
                Cell(each.severity, SEVERITY_STYLES[each.severity]),
                Cell(each.name, "dim"),
                Cell(_plain(each.title)),
            ]
            for each in explained
        ]
        titles = ("code", "severity", "name", "problem")
        columns = [Column(title, fixed=title != "problem") for title in titles]
        table = Table(columns, rows)
        if table_width(table) <= width:
            return [table]
        return [Table([columns[0], columns[3]], [[row[0], row[3]] for row in rows])]

    return View("codes", lambda: {"codes": records()}, records, blocks)


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


SARIF_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
SARIF_VERSION = "2.1.0"
_LEVELS = {"error": "error", "warning": "warning", "suggestion": "note"}


def sarif(report: CheckReport, codes: Sequence[str], text: str | None = None) -> dict[str, Any]:
    """Return the findings of a check as a SARIF log.

    Args:
        report: Findings.
        codes: Rules that were checked; those of the findings are added.
        text: Text of the file that contains the whole pipeline, for fixes. ``None``: no such file.
    """
    rules = sorted({*codes, *(finding.code for finding in report.findings)})
    driver = {
        "name": "tdx",
        "version": __version__,
        "rules": [_sarif_rule(explain_code(code)) for code in rules],
    }
    run = {
        "tool": {"driver": driver},
        "columnKind": "unicodeCodePoints",
        "results": [
            _sarif_result(finding, rules.index(finding.code), text) for finding in report.findings
        ],
    }
    return {"$schema": SARIF_SCHEMA, "version": SARIF_VERSION, "runs": [run]}


def _sarif_rule(explained: Explanation) -> dict[str, Any]:
    return {
        "id": explained.code,
        "name": explained.name,
        "shortDescription": {"text": explained.title},
        "fullDescription": {"text": "\n\n".join(explained.paragraphs)},
        "help": {"text": f"tdx explain {explained.code}"},
        "defaultConfiguration": {"level": _LEVELS[explained.severity]},
    }


def _sarif_result(finding: Finding, rule_index: int, file_text: str | None) -> dict[str, Any]:
    text = f"{finding.message} ({finding.hint})" if finding.hint else finding.message
    place = finding.where
    lead = "" if place.stage is None else f"stage {place.stage} ({place.transform}): "
    result = {
        "ruleId": finding.code,
        "ruleIndex": rule_index,
        "level": _LEVELS[finding.severity],
        "message": {"text": lead + text},
        "locations": [_location(finding)],
    }
    if finding.fix is not None and _in_file(finding) and file_text is not None:
        result["fixes"] = [_sarif_fix(finding.fix, str(finding.where.file), file_text)]
    return result


def _sarif_fix(fix: Fix, name: str, text: str) -> dict[str, Any]:
    from tdx.pipeline import PipelineFile

    file = PipelineFile(text, name)
    fix.apply(file)
    replacements = list(_replacements(text, file.text.replace("\n", file.newline)))
    change = {"artifactLocation": {"uri": _uri(name)}, "replacements": replacements}
    return {"description": {"text": fix.title}, "artifactChanges": [change]}


def _replacements(before: str, after: str) -> Iterator[dict[str, Any]]:
    """Return the replacements that turn one text into the other, by whole lines."""
    old, new = before.splitlines(keepends=True), after.splitlines(keepends=True)
    for kind, start, end, begin, stop in difflib.SequenceMatcher(None, old, new).get_opcodes():
        if kind == "equal":
            continue
        replacement: dict[str, Any] = {"deletedRegion": _region(old, start, end)}
        if begin < stop:
            replacement["insertedContent"] = {"text": "".join(new[begin:stop])}
        yield replacement


def _region(lines: Sequence[str], start: int, end: int) -> dict[str, int]:
    """Return the region from the start of one line to the start of another."""
    places = []
    for index in (start, end):
        cut = index == len(lines) and index > 0 and not lines[-1].endswith("\n")
        places.append((index, len(lines[-1]) + 1) if cut else (index + 1, 1))
    (line, column), (last, after) = places
    return {"startLine": line, "startColumn": column, "endLine": last, "endColumn": after}


def _location(finding: Finding) -> dict[str, Any]:
    where = finding.where
    location: dict[str, Any] = {}
    if _in_file(finding):
        physical: dict[str, Any] = {"artifactLocation": {"uri": _uri(str(where.file))}}
        if where.line is not None:
            column = {} if where.column is None else {"startColumn": where.column}
            physical["region"] = {"startLine": where.line, **column}
        location["physicalLocation"] = physical
    name = "env" if where.stage is None else f"stage {where.stage}"
    full = name if where.transform is None else f"{name} ({where.transform})"
    location["logicalLocations"] = [{"name": name, "fullyQualifiedName": full, "kind": "member"}]
    return location


def _in_file(finding: Finding) -> bool:
    return finding.where.file not in (None, "<stdin>")


def _uri(file: str) -> str:
    return Path(file).as_uri() if Path(file).is_absolute() else quote(file.replace("\\", "/"))

"""Views of findings, rules and error codes, and findings as SARIF 2.1.0."""

from __future__ import annotations

import difflib
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, TypedDict
from urllib.parse import quote

from tdx import __version__
from tdx.cli.views import (
    SEVERITY_STYLES,
    Block,
    Cell,
    Code,
    Column,
    Fluid,
    Heading,
    Paragraph,
    Style,
    Table,
    View,
    fact,
)
from tdx.foundation.errors import Where
from tdx.foundation.keys import format_key
from tdx.foundation.serialization import Entries, Entry, Result
from tdx.foundation.text import count_text
from tdx.inspection.check_report import Check, CheckReport, Finding, RuleCount
from tdx.inspection.explanations import CodeExplanation, explain_code
from tdx.inspection.lint.rule import Severity

if TYPE_CHECKING:
    from tdx.inspection.check_report import CheckReport, CheckSummary, Finding
    from tdx.inspection.explanations import CodeExplanation
    from tdx.inspection.lint.rule import Fix, Severity


_PASSED: dict[Check, str] = {
    "arguments": "all stages exist and their arguments have the declared types",
    "specs": "the env and the chain can be built, and every stage finds the keys that it reads",
    "steps": "reset, step and rollout return values within the specs",
    "lints": "no rule is violated; tdx explain lists the rules",
    "accelerator": "the chain runs on a simulated GPU; no stage makes the host wait in most steps",
}
_SEVERITIES: tuple[Severity, ...] = ("error", "warning", "suggestion")
_COLUMNS = tuple(Finding("steps", "", "", None, Where()).to_dict())
_CODE_INDENT, _MIN_EXCERPT = 2, 20
_STATUS_STYLES: dict[str, Style] = {"passed": "good", "skipped": "dim", **SEVERITY_STYLES}


class AppliedFix(TypedDict):
    """JSON entries of a fix that was applied, or would be."""

    code: str
    title: str


class FixEntries(TypedDict):
    """JSON entries of the fixes of a pipeline: the fixed options, or a diff of the file."""

    fixes: list[AppliedFix]
    command: str | None
    diff: str | None


@dataclass(frozen=True, slots=True)
class CheckedPipeline(Result):
    """Findings of a pipeline, and its fixes if they were asked for."""

    json_entries: ClassVar[Entries] = (
        *(Entry("report", inline=True), Entry("fixed", omit_none=True)),
    )

    report: CheckReport
    fixed: FixEntries | None


def check_view(
    report: CheckReport,
    fixes: FixEntries | None = None,
    text: str | None = None,
    *,
    verbose: bool = False,
) -> View:
    """Lay out the findings of a check, each with its place in the file.

    ``text`` is that of the file that the findings refer to, if there is one.
    """

    def blocks() -> list[Block]:
        shown = _findings(report, text, set(), verbose=verbose)
        notes = [fact("note", text) for text in (*report.hidden, *report.notes)]
        return [*shown, *_summary(report), *notes]

    result = CheckedPipeline(report, fixes)
    return View("check", result, blocks, lambda: report.findings, names=_COLUMNS)


def checks_view(
    summary: CheckSummary, texts: Sequence[str | None], *, statistics: bool, verbose: bool
) -> View:
    """Lay out the findings of several targets, and how many targets have some."""

    def blocks() -> list[Block]:
        shown: list[Block] = []
        explained: set[str] = set()
        for target, text in zip(summary.targets, texts, strict=True):
            report = target.report
            if not statistics:
                shown += _findings(report, text, explained, verbose=verbose)
            notes = (*report.hidden, *report.notes)
            shown += [fact("note", f"{target.target}: {note}") for note in notes]
        if statistics and summary.rules:
            rows = [
                [
                    Cell(str(rule.count)),
                    Cell(rule.code, SEVERITY_STYLES[rule.severity]),
                    Cell(f"{rule.fixable} fixable" if rule.fixable else "", "dim"),
                    Cell(_plain(rule.title or explain_code(rule.code).title)),
                ]
                for rule in summary.rules
            ]
            shown.append(Table([*[Column(fixed=True)] * 3, Column()], rows))
        return [*shown, _total(summary)]

    def records() -> Iterator[dict[str, object]]:
        for target in summary.targets:
            for finding in target.report.findings:
                yield {"target": target.target, **finding.to_dict()}

    if statistics:
        names = [field.name for field in fields(RuleCount)]
        return View("checks", summary, blocks, lambda: summary.rules, names=names)
    return View("checks", summary, blocks, records, names=("target", *_COLUMNS))


def _total(summary: CheckSummary) -> Paragraph:
    """Return the line that counts targets and findings."""
    findings = summary.findings
    reports = [target.report for target in summary.targets]
    failed = sum(not report.checks for report in reports)
    clean = sum(not report.findings and not report.hidden for report in reports)
    partial = sum(not report.findings and bool(report.hidden) for report in reports)
    parts = {"without issues": clean, "without issues in what is visible": partial}
    parts["with issues"] = len(reports) - clean - partial - failed
    parts["could not be checked"] = failed
    outcome = ", ".join(f"{count} {name}" for name, count in parts.items() if count)
    text = f"Checked {count_text(len(reports), 'target')}: {outcome}"
    if findings:
        text += f"; {_count_severities(findings)}{_fixable(findings)}"
    if suppressed := sum(report.suppressed for report in reports):
        text += f"; {suppressed} suppressed by comments"
    return Paragraph([Cell(text, "good" if clean == len(reports) else "")])


def _findings(
    report: CheckReport, text: str | None, explained: set[str], *, verbose: bool
) -> Iterator[Block]:
    """Yield the findings of a target; codes in ``explained`` have been explained already."""
    lines = [] if text is None else text.splitlines()
    if verbose:
        rows = [
            [Cell(status, _STATUS_STYLES[status]), Cell(check), Cell(_result(check, report))]
            for check, status in report.statuses.items()
        ]
        yield Heading(report.env, report.parts or count_text(report.stages, "stage"), level=1)
        yield Table([Column(fixed=True), Column(fixed=True), Column()], rows)
    for finding in report.findings:
        yield from _finding(finding, report, lines)
        if verbose and finding.why and finding.code not in explained:
            yield fact("why", finding.why.replace("`", ""))
        explained.add(finding.code)


def _result(check: str, report: CheckReport) -> str:
    """Return the number of findings of a check, or what it proves if there are none."""
    findings = [finding for finding in report.findings if finding.check == check]
    if findings:
        return _count_severities(findings)
    if check in report.checks:
        return _PASSED[check]
    failed = next((name for name, status in report.statuses.items() if status == "error"), None)
    return "" if failed is None else f"skipped because of the errors in {failed}"


def _count_severities(findings: Sequence[Finding]) -> str:
    counts = [(sum(finding.severity == name for finding in findings), name) for name in _SEVERITIES]
    return ", ".join(count_text(count, name) for count, name in counts if count)


def _finding(finding: Finding, report: CheckReport, lines: Sequence[str]) -> Iterator[Block]:
    """Yield a finding: its place and message, the line of the file, and what to do."""
    where = finding.where
    stage = "" if where.stage is None else f"stage {where.stage} ({where.transform}): "
    if where.stage is None and where.key is not None:
        stage = f"key {format_key(where.key)!r}: "
    mark = [] if finding.fix is None else [Cell(f"[{'*' if finding.fix.safe else '?'}] ", "dim")]
    code = Cell(f"{finding.code} ", SEVERITY_STYLES[finding.severity])
    message = [Cell(stage, "name"), Cell(finding.message)]
    yield Paragraph([Cell(f"{_place(finding, report)}: "), code, *mark, *message])
    if where.line is not None and where.line <= len(lines):
        line = lines[where.line - 1].rstrip()
        yield Fluid(lambda width: [_excerpt(line, finding, width)])
    if finding.hint:
        yield fact("help", finding.hint)
    if finding.fix is not None:
        yield fact("fix" if finding.fix.safe else "unsafe fix", finding.fix.title)


def _place(finding: Finding, report: CheckReport) -> str:
    where = finding.where
    parts = [where.file or report.env, where.line, where.column if where.line else None]
    return ":".join(str(part) for part in parts if part is not None)


def _excerpt(line: str, finding: Finding, width: int) -> Code:
    """Return a line of the file with the stage, or the key, underlined."""
    where = finding.where
    key = "" if where.key is None else format_key(where.key)
    places = [match.start() for match in re.finditer(rf"(?<![\w.]){re.escape(key)}(?!\w)", line)]
    start = places[0] if key and len(places) == 1 else (where.column or 1) - 1
    word = re.match(r"[\w.:]+", line[start:])
    margin = f"{where.line} | "
    room = max(width - _CODE_INDENT - len(margin), _MIN_EXCERPT)
    left = 0 if len(line) <= room else max(0, min(start - room // 4, len(line) - room))
    length = min(len(word[0]) if word else 1, room)
    pointer = f"{'| ':>{len(margin)}}{' ' * (start - left)}{'^' * length}"
    return Code(f"{margin}{line[left : left + room]}\n{pointer}", "yaml", excerpt=True)


def _summary(report: CheckReport) -> Iterator[Block]:
    """Yield the numbers of findings and of fixable findings."""
    findings = report.findings
    if not findings:
        passed = ", ".join(check for check in report.requested if check in report.checks)
        skipped = [check for check in report.requested if check not in report.checks]
        rest = f"; {', '.join(skipped)} skipped" if skipped else ""
        # What is hidden was not checked.
        verdict = "no issue in what is visible" if report.hidden else "all checks passed"
        text = f"{report.subject}: {verdict} ({passed}{rest})"
        style: Style = "" if report.hidden else "good"
        yield Paragraph([Cell(text + _suppressed(report), style)])
        return
    count = count_text(len(findings), "issue")
    text = f"Found {count} in {report.subject}: {_count_severities(findings)}{_fixable(findings)}"
    yield Paragraph([Cell(text + _suppressed(report))])


def _fixable(findings: Sequence[Finding]) -> str:
    """Return the numbers of fixable findings by the options that apply the fixes."""
    fixes = Counter(
        ("--fix" if finding.fix.safe else "--unsafe-fixes")
        + (" --strict" if finding.severity == "suggestion" else "")
        for finding in findings
        if finding.fix is not None
    )
    fixable = ", ".join(
        f"{count} fixable with {options}" for options, count in sorted(fixes.items())
    )
    return f" ({fixable})" if fixable else ""


def _suppressed(report: CheckReport) -> str:
    return f"; {report.suppressed} suppressed by comments" if report.suppressed else ""


def explain_view(explained: CodeExplanation) -> View:
    """Lay out the explanation of a code."""

    def blocks() -> list[Block]:
        kind = explained.name if explained.kind == "error" else explained.severity
        aside = f"{kind}, exit code {explained.exit_code}"
        head = Heading(f"{explained.code}  {explained.title}", aside, level=1)
        prose = [Paragraph([Cell(_plain(text))]) for text in explained.paragraphs]
        shown: list[Block] = [head, *prose]
        texts = {
            "my_code.py": explained.python,
            "wrong": explained.wrong,
            "right": explained.right,
        }
        for title, text in texts.items():
            if text is not None:
                lines = [Paragraph([Cell(line)], indent=2) for line in text.splitlines()]
                shown += [Heading(title), *lines]
        return shown

    return View("explanation", explained, blocks)


@dataclass(frozen=True, slots=True)
class CodeRow(Result):
    """A code in the list of codes.

    Args:
        explained: Explanation of the code.
    """

    json_entries: ClassVar[Entries] = (
        *(Entry("code", "explained.code"), Entry("family", "explained.kind")),
        *(Entry(name, f"explained.{name}") for name in ("name", "severity", "title")),
    )

    explained: CodeExplanation


@dataclass(frozen=True, slots=True)
class CodeList(Result):
    """All codes."""

    codes: tuple[CodeRow, ...]


def codes_view(explained: Sequence[CodeExplanation]) -> View:
    """Lay out a list of codes."""
    codes = tuple(map(CodeRow, explained))

    def blocks() -> list[Block]:
        rows = [
            [
                Cell(explanation.code, "name"),
                Cell(explanation.severity, SEVERITY_STYLES[explanation.severity]),
                Cell(explanation.name, "dim"),
                Cell(_plain(explanation.title)),
            ]
            for explanation in explained
        ]
        columns = [
            Column("code", fixed=True),
            Column("severity", fixed=True, importance=1),
            Column("name", fixed=True, importance=0),
            Column("problem"),
        ]
        return [Table(columns, rows)]

    return View("codes", CodeList(codes), blocks, lambda: codes)


def _plain(text: str) -> str:
    return text.replace("`", "")


SARIF_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
SARIF_VERSION = "2.1.0"
_LEVELS = {"error": "error", "warning": "warning", "suggestion": "note"}


def sarif(
    reports: Sequence[tuple[CheckReport, str | None]], codes: Sequence[str]
) -> dict[str, object]:
    """Return the findings of checks as a SARIF log with one run.

    A report has the text of the file with the whole pipeline, for fixes, if there is one.
    """
    reported = {finding.code for report, _ in reports for finding in report.findings}
    rules = sorted({*codes, *reported})
    explained = [explain_code(code) for code in rules]
    driver = {
        "name": "tdx",
        "version": __version__,
        "rules": [
            {
                "id": explanation.code,
                "name": explanation.name,
                "shortDescription": {"text": explanation.title},
                "fullDescription": {"text": "\n\n".join(explanation.paragraphs)},
                "help": {"text": f"tdx explain {explanation.code}"},
                "defaultConfiguration": {"level": _LEVELS[explanation.severity]},
            }
            for explanation in explained
        ],
    }
    run = {
        "tool": {"driver": driver},
        "columnKind": "unicodeCodePoints",
        "results": [
            _sarif_result(finding, rules.index(finding.code), text)
            for report, text in reports
            for finding in report.findings
        ],
    }
    return {"$schema": SARIF_SCHEMA, "version": SARIF_VERSION, "runs": [run]}


def _sarif_result(finding: Finding, rule_index: int, file_text: str | None) -> dict[str, object]:
    text = f"{finding.message} ({finding.hint})" if finding.hint else finding.message
    where, in_file = finding.where, finding.where.file not in (None, "<stdin>")
    name = "env" if where.stage is None else f"stage {where.stage}"
    full = name if where.transform is None else f"{name} ({where.transform})"
    logical = {"name": name, "fullyQualifiedName": full, "kind": "member"}
    location: dict[str, object] = {"logicalLocations": [logical]}
    if in_file:
        physical: dict[str, object] = {"artifactLocation": {"uri": _uri(str(where.file))}}
        if where.line is not None:
            column = {} if where.column is None else {"startColumn": where.column}
            physical["region"] = {"startLine": where.line, **column}
        location = {"physicalLocation": physical, **location}
    result = {
        "ruleId": finding.code,
        "ruleIndex": rule_index,
        "level": _LEVELS[finding.severity],
        "message": {"text": text if where.stage is None else f"{full}: {text}"},
        "locations": [location],
    }
    if finding.fix is not None and in_file and file_text is not None:
        result["fixes"] = [_sarif_fix(finding.fix, str(where.file), file_text)]
    return result


def _sarif_fix(fix: Fix, name: str, text: str) -> dict[str, object]:
    """Return the replacements of whole lines that apply a fix to a file."""
    from tdx.pipeline import PipelineFile

    file = PipelineFile(text, name)
    file.write(fix.apply(file.draft))
    old = text.splitlines(keepends=True)
    new = file.text.replace("\n", file.newline).splitlines(keepends=True)

    def start_of(index: int) -> tuple[int, int]:
        """Return line and column; after the last line its end, if no newline follows it."""
        cut = index == len(old) and index > 0 and not old[-1].endswith("\n")
        return (index, len(old[-1]) + 1) if cut else (index + 1, 1)

    replacements: list[dict[str, object]] = []
    for kind, start, end, begin, stop in difflib.SequenceMatcher(None, old, new).get_opcodes():
        if kind == "equal":
            continue
        (line, column), (last, after) = start_of(start), start_of(end)
        places = {"startLine": line, "startColumn": column, "endLine": last, "endColumn": after}
        replacements.append({"deletedRegion": places})
        if begin < stop:
            replacements[-1]["insertedContent"] = {"text": "".join(new[begin:stop])}
    change = {"artifactLocation": {"uri": _uri(name)}, "replacements": replacements}
    return {"description": {"text": fix.title}, "artifactChanges": [change]}


def _uri(file: str) -> str:
    path = Path(file)
    return path.as_uri() if path.is_absolute() else quote(path.as_posix())

"""Findings as SARIF 2.1.0, which code hosts and editors show next to the code."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from tdx import __version__
from tdx.inspection.explanations import explain_code

if TYPE_CHECKING:
    from tdx.inspection.check_report import CheckReport, Finding
    from tdx.inspection.explanations import Explanation
    from tdx.inspection.lint.rule import Fix

SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
VERSION = "2.1.0"
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
        "rules": [_rule(explain_code(code)) for code in rules],
    }
    run = {
        "tool": {"driver": driver},
        "columnKind": "unicodeCodePoints",
        "results": [
            _result(finding, rules.index(finding.code), text) for finding in report.findings
        ],
    }
    return {"$schema": SCHEMA, "version": VERSION, "runs": [run]}


def _rule(explained: Explanation) -> dict[str, Any]:
    return {
        "id": explained.code,
        "name": explained.name,
        "shortDescription": {"text": explained.title},
        "fullDescription": {"text": "\n\n".join(explained.paragraphs)},
        "help": {"text": f"tdx explain {explained.code}"},
        "defaultConfiguration": {"level": _LEVELS[explained.severity]},
    }


def _result(finding: Finding, rule_index: int, file_text: str | None) -> dict[str, Any]:
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
        result["fixes"] = [_fix(finding.fix, str(finding.where.file), file_text)]
    return result


def _fix(fix: Fix, name: str, text: str) -> dict[str, Any]:
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

"""Findings as SARIF 2.1.0, which code hosts and editors show beside the lines they speak of."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from tdx import __version__
from tdx.inspection.explanations import explanation

if TYPE_CHECKING:
    from tdx.inspection.check_report import CheckReport, Finding
    from tdx.inspection.explanations import Explanation

SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
VERSION = "2.1.0"
_LEVELS = {"error": "error", "warning": "warning", "advice": "note"}


def sarif(report: CheckReport, codes: Sequence[str]) -> dict[str, Any]:
    """The findings of a check as a SARIF log.

    Args:
        report: what was found.
        codes: the rules that it was held against; those of all findings are added.
    """
    found = [finding.code for finding in report.findings]
    rules = sorted(dict.fromkeys([*codes, *found]))
    driver = {
        "name": "tdx",
        "version": __version__,
        "rules": [_rule(explanation(code)) for code in rules],
    }
    run = {
        "tool": {"driver": driver},
        "columnKind": "unicodeCodePoints",
        "results": [_result(finding, rules.index(finding.code)) for finding in report.findings],
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


def _result(finding: Finding, rule_index: int) -> dict[str, Any]:
    text = f"{finding.message} ({finding.hint})" if finding.hint else finding.message
    place = finding.where
    lead = "" if place.stage is None else f"stage {place.stage} ({place.transform}): "
    return {
        "ruleId": finding.code,
        "ruleIndex": rule_index,
        "level": _LEVELS[finding.severity],
        "message": {"text": lead + text},
        "locations": [_location(finding)],
    }


def _location(finding: Finding) -> dict[str, Any]:
    where = finding.where
    location: dict[str, Any] = {}
    if where.file is not None and where.file != "<stdin>":
        physical: dict[str, Any] = {"artifactLocation": {"uri": _uri(where.file)}}
        if where.line is not None:
            column = {} if where.column is None else {"startColumn": where.column}
            physical["region"] = {"startLine": where.line, **column}
        location["physicalLocation"] = physical
    name = "env" if where.stage is None else f"stage {where.stage}"
    full = name if where.transform is None else f"{name} ({where.transform})"
    location["logicalLocations"] = [{"name": name, "fullyQualifiedName": full, "kind": "member"}]
    return location


def _uri(file: str) -> str:
    return Path(file).as_uri() if Path(file).is_absolute() else quote(file.replace("\\", "/"))

"""A comparison of two stacks as one HTML page."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tdx.cli.html import render_page
from tdx.contracts.model import Contract, StageRecord
from tdx.contracts.side_by_side import StageRow, side_by_side

if TYPE_CHECKING:
    from tdx.contracts import ContractReport


def contract_page(a: Contract, b: Contract | None, report: ContractReport) -> str:
    """Return the HTML report of a comparison.

    Args:
        a: The contract.
        b: The target. ``None``: it failed.
        report: What differs.
    """
    rows = [] if b is None else [_describe_row(each) for each in side_by_side(a, b, report)]
    return render_page("contract.html.j2", "report.css", report=report, rows=rows)


def _describe_row(row: StageRow) -> dict[str, Any]:
    return {
        "a": _describe(row.a),
        "b": _describe(row.b),
        "status": row.status,
        "differences": row.differences,
    }


def _describe(stage: StageRecord | None) -> dict[str, Any] | None:
    if stage is None:
        return None
    arguments = ", ".join(f"{name}={value!r:.40}" for name, value in stage.arguments.items())
    specs = [
        f"{each.key} {list(each.shape)} {each.dtype} {each.domain}"
        for each in stage.specs
        if each.part in ("observation", "action")
    ]
    title = f"{stage.index} {stage.name}" if stage.index >= 0 else stage.name
    return {"title": title, "arguments": arguments, "specs": specs}

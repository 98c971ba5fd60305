"""A comparison of two stacks as one HTML page."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tdx.cli.html import render_page
from tdx.contracts.align import align
from tdx.contracts.model import Contract, StageRecord

if TYPE_CHECKING:
    from tdx.contracts import ContractReport


def contract_page(a: Contract, b: Contract | None, report: ContractReport) -> str:
    """Return the HTML report of a comparison.

    Args:
        a: The contract.
        b: The target. ``None``: it failed.
        report: What differs.
    """
    return render_page(
        "contract.html.j2",
        "report.css",
        report=report,
        rows=[] if b is None else _rows(a, b, report),
    )


def _rows(a: Contract, b: Contract, report: ContractReport) -> list[dict[str, Any]]:
    """Return the stages side by side."""
    pairs = [(pair.a, pair.b, pair.status) for pair in align(a, b)]
    rows = []
    for one, other, status in [(a.stage(-1), b.stage(-1), "paired"), *pairs]:
        found = [
            each
            for each in (*report.differences, *report.follows)
            if (other is not None and each.stage == other.index)
            or (other is None and one is not None and each.reference_stage == one.index)
        ]
        is_root = any(each in report.differences for each in found)
        rows.append(
            {
                "a": _describe(one),
                "b": _describe(other),
                "status": status if not found else "differs" if is_root else "follows",
                "differences": found,
            }
        )
    return rows


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

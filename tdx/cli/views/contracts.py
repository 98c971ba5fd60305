"""View of a comparison with a contract."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from tdx.cli.views import Block, Cell, Heading, Paragraph, View, count_text

if TYPE_CHECKING:
    from tdx.contracts import ContractReport, Difference

_SHOWN = 3
_COLUMNS = (
    *("root", "code", "kind", "stage", "reference_stage", "name", "key", "message", "size", "hint"),
)


def contract_view(report: ContractReport) -> View:
    """Lay out what differs between a contract and a target.

    Args:
        report: Report to show.
    """

    def blocks(width: int) -> list[Block]:
        aside = f"{count_text(report.stages, 'stage')}, {count_text(report.steps, 'golden step')}"
        found: list[Block] = [Heading(f"{report.reference} → {report.target}", aside, level=1)]
        if report.same:
            found.append(Paragraph([Cell("same", "good"), Cell(_SAME)]))
        for index, each in enumerate(report.differences):
            found.append(Heading("first difference" if index == 0 else "further difference"))
            found += _difference(each)
        if report.follows:
            found += _folded(report)
        found += [Paragraph([Cell("excluded: ", "dim"), Cell(each)]) for each in report.excluded]
        found += [Paragraph([Cell("note: ", "dim"), Cell(each)]) for each in report.notes]
        return found

    def records() -> Iterator[dict[str, Any]]:
        for is_root, part in ((True, report.differences), (False, report.follows)):
            yield from ({"root": is_root, **each.to_dict()} for each in part)

    return View("contract", report.to_dict, records, blocks, _COLUMNS)


_SAME = ": the target preprocesses as the contract does"


def _difference(each: Difference) -> Iterator[Block]:
    code = Cell(f"{each.code} ", "bad")
    yield Paragraph([code, Cell(f"{each.kind} ", "dim"), Cell(each.sentence, "name")])
    if each.size is not None:
        text = f"{each.key} differs by up to {each.size:.4g}"
        yield Paragraph([Cell("size: ", "dim"), Cell(text)], indent=7)
    if each.hint:
        yield Paragraph([Cell("hint: ", "dim"), Cell(each.hint)], indent=7)


def _folded(report: ContractReport) -> list[Block]:
    """Return what follows from the differences on one line, with the first of them."""
    stages = list(dict.fromkeys(each.place for each in report.follows))
    shown = ", ".join(stages[:_SHOWN])
    more = f" and {len(stages) - _SHOWN} more" if len(stages) > _SHOWN else ""
    text = f"{count_text(len(report.follows), 'difference')} at {shown}{more}"
    return [Paragraph([Cell("follows from it: ", "dim"), Cell(text)])]

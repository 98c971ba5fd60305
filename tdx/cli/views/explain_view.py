"""The layout of what codes mean."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tdx.cli.output.terminal import table_width
from tdx.cli.output.view import Block, Cell, Column, Heading, Paragraph, Style, Table, View
from tdx.inspection.explanations import Explanation

_STYLES: dict[str, Style] = {"error": "bad", "warning": "changed", "suggestion": "dim"}


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
                Cell(each.severity, _STYLES[each.severity]),
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

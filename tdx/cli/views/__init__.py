"""The result of a command as blocks and records, independent of its output format."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, Self, TypedDict

from tdx.foundation.serialization import Result
from tdx.foundation.text import display_width, escape_control_characters, three_digits

UNLIMITED = 10_000
"""Columns of a pipe and of a page, where nothing is cut or wrapped."""
GAP = 2
"""Columns between two columns of a table."""

Style = Literal["", "added", "changed", "gone", "dim", "name", "good", "bad", "title", "heading"]


@dataclass(frozen=True, slots=True)
class Cell:
    """Text with a style."""

    text: str
    style: Style = ""


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a table.

    Args:
        fixed: If True, its cells are not wrapped in a narrow terminal.
        importance: A narrow terminal lacks the least important columns. Infinite: it never lacks
            this one.
    """

    title: str = ""
    fixed: bool = False
    is_number: bool = False
    importance: float = math.inf


@dataclass(frozen=True, slots=True)
class Table:
    """Rows under columns."""

    columns: Sequence[Column]
    rows: Sequence[Sequence[Cell]]

    @classmethod
    def of(
        cls,
        titles: Sequence[str],
        rows: Sequence[Sequence[Cell]],
        *,
        fixed: bool = False,
        numbers: Collection[str] = (),
        optional: Sequence[str] = (),
    ) -> Self:
        """Return a table with these titles.

        Args:
            titles: Titles of the columns.
            rows: One cell per column.
            fixed: If True, no cell is wrapped in a narrow terminal.
            numbers: Titles of the columns that are right-aligned.
            optional: Titles of columns that a narrow terminal may lack, the first one first.
        """
        importance = {title: float(place) for place, title in enumerate(optional)}
        columns = [
            Column(title, fixed, title in numbers, importance.get(title, math.inf))
            for title in titles
        ]
        return cls(columns, rows)

    @property
    def widths(self) -> list[int]:
        """Columns of the terminal that each column takes if no cell is wrapped."""
        texts = zip(
            [column.title for column in self.columns],
            *([cell.text for cell in row] for row in self.rows),
            strict=True,
        )
        return [max(map(display_width, column)) for column in texts]

    @property
    def width(self) -> int:
        """Columns of the terminal that the table takes if no cell is wrapped."""
        widths = self.widths
        return sum(widths) + GAP * (len(widths) - 1)

    def narrowed(self, width: int) -> Table:
        """Return the table without the columns that a terminal has no place for."""
        table = self
        while table.width > width:
            least = min(column.importance for column in table.columns)
            if math.isinf(least):
                break
            kept = [index for index, c in enumerate(table.columns) if c.importance > least]
            rows = [[row[index] for index in kept] for row in table.rows]
            table = Table([table.columns[index] for index in kept], rows)
        return table


@dataclass(frozen=True, slots=True)
class Heading:
    """A heading.

    Args:
        level: 1 for the title of the page, 2 for a section, 3 for a part of a section.
    """

    text: str
    aside: str = ""
    level: Literal[1, 2, 3] = 2


@dataclass(frozen=True, slots=True)
class Paragraph:
    """Running text, wrapped at the width of the terminal."""

    cells: Sequence[Cell]
    indent: int = 0


@dataclass(frozen=True, slots=True)
class Code:
    """Code, shown unchanged.

    Args:
        excerpt: True if it is an excerpt of a file that belongs to the text around it.
    """

    text: str
    language: str = "python"
    excerpt: bool = False


@dataclass(frozen=True, slots=True)
class Fold:
    """Blocks that HTML shows on demand; the other formats show them below their summary."""

    summary: str
    blocks: Sequence[Block]


@dataclass(frozen=True, slots=True)
class Picture:
    """A picture of a :class:`Gallery`.

    Args:
        source: Content of a PNG file, or a function that draws an SVG image; it returns an empty
            string if there is nothing to draw.
    """

    source: bytes | Callable[[], str]
    caption: str = ""


@dataclass(frozen=True, slots=True)
class Gallery:
    """Pictures, which only HTML shows."""

    pictures: Sequence[Picture]
    heading: Heading | None = None
    text: str = ""


@dataclass(frozen=True, slots=True)
class Fluid:
    """Blocks that depend on the number of columns, :data:`UNLIMITED` outside of terminals."""

    layout: Callable[[int], Iterable[Block]]


Block = Table | Heading | Paragraph | Code | Fold | Gallery | Fluid
TextBlock = Table | Heading | Paragraph | Code


@dataclass(frozen=True, slots=True)
class View:
    """A result for all output formats.

    The records contain the items of the lists in the result with the same values, flat instead of
    nested. The rest of the result describes the whole. An output format creates only what it shows.

    Args:
        result: The result, or a function that returns it as plain data, for json.
        records: Returns the rows for jsonl and csv. ``None``: the result is the only one.
        calls: Each stage of the chain in the ``-t`` grammar, for a result about a chain.
        names: Columns of csv if there are no records.
    """

    kind: str
    result: Result | Callable[[], Mapping[str, object]]
    blocks: Callable[[], Iterable[Block]]
    records: Callable[[], Iterable[Result | Mapping[str, object]]] | None = None
    calls: Sequence[str] | None = None
    names: Sequence[str] = ()

    def data(self) -> Mapping[str, object]:
        """Return the whole result as plain data."""
        result = self.result
        data = dict(result.to_dict() if isinstance(result, Result) else result())
        if self.calls is None:
            return data
        stages: list[dict[str, object]] = data.setdefault("stages", [{} for _ in self.calls])
        for index, (stage, call) in enumerate(zip(stages, self.calls, strict=True)):
            stage.update(StageCall(stage=index, transform=call.partition("(")[0], call=call))
        return data

    def rows(self) -> Iterator[Mapping[str, object]]:
        """Yield each record as plain data."""
        for record in [self.data()] if self.records is None else self.records():
            yield record.to_dict() if isinstance(record, Result) else record


class StageCall(TypedDict):
    """JSON entries of each stage of a chain."""

    stage: int
    transform: str
    call: str


def first_that_fits(*layouts: Callable[[], Iterable[Block]]) -> Fluid:
    """Return a block that becomes the first layout whose tables fit, or the last one.

    The width is known only when a format renders the view (:func:`resolve`).
    """

    def layout(width: int) -> Iterable[Block]:
        *wide, narrow = layouts
        for create in wide:
            blocks = list(create())
            if all(block.width <= width for block in blocks if isinstance(block, Table)):
                return blocks
        return narrow()

    return Fluid(layout)


def resolve(blocks: Iterable[Block], width: int) -> Iterator[Block]:
    """Yield blocks with each :class:`Fluid` replaced by what it shows at a width."""
    for block in blocks:
        if isinstance(block, Fluid):
            yield from resolve(block.layout(width), width)
        else:
            yield block


def text_blocks(blocks: Iterable[Block], width: int) -> list[TextBlock]:
    """Return what a terminal and Markdown show of blocks.

    Control and bidirectional characters are escaped.
    """
    shown: list[TextBlock] = []
    for block in resolve(blocks, width):
        match block:
            case Heading():
                text, aside = map(escape_control_characters, (block.text, block.aside))
                shown.append(replace(block, text=text, aside=aside))
            case Paragraph():
                shown.append(replace(block, cells=_escape_cells(block.cells)))
            case Code():
                text = escape_control_characters(block.text, keep="\n\t")
                shown.append(replace(block, text=text))
            case Table():
                columns = [
                    replace(column, title=escape_control_characters(column.title))
                    for column in block.columns
                ]
                shown.append(Table(columns, [_escape_cells(row) for row in block.rows]))
            case Fold():
                if inner := text_blocks(block.blocks, width):
                    summary = escape_control_characters(block.summary)
                    shown += [Paragraph([Cell(f"{summary}:", "dim")]), *inner]
            case Gallery() | Fluid():
                pass
    return shown


def _escape_cells(cells: Sequence[Cell]) -> list[Cell]:
    texts = [escape_control_characters(cell.text) for cell in cells]
    return [
        cell if text is cell.text else Cell(text, cell.style)
        for cell, text in zip(cells, texts, strict=True)
    ]


NONE = "–"
"""Text of an empty cell."""

SEVERITY_STYLES: dict[str, Style] = {"error": "bad", "warning": "changed", "suggestion": "dim"}


def duration_text(seconds: float) -> str:
    """Return an estimated duration, without digits that an estimate cannot have.

    Example:
        >>> [duration_text(each) for each in (0.25, 42.3, 123, 725, 12_345)]
        ['0.2 s', '42 s', '2 min 3 s', '12 min', '3 h 26 min']
    """
    if seconds < 1:
        return f"{max(seconds, 0.1):.1f} s"
    if seconds >= 600:
        hours, minutes = divmod(round(seconds / 60), 60)
        return f"{hours:,} h {minutes} min" if hours else f"{minutes} min"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


def change_text(before: str, after: str) -> str:
    """Return ``before → after``, or one of them if they are equal."""
    return before if before == after else f"{before} → {after}"


def fact(
    title: str, text: str, style: Style = "", *, title_style: Style = "dim", indent: int = 2
) -> Paragraph:
    """Return an indented line of a title and a text."""
    return Paragraph([Cell(f"{title}: ", title_style), Cell(text, style)], indent=indent)


def dim(text: str, indent: int = 0) -> Paragraph:
    """Return a remark, which is less important than what it stands beside."""
    return Paragraph([Cell(text, "dim")], indent=indent)


def fact_table(facts: Iterable[tuple[str, str]]) -> Table:
    """Return a table of names and texts."""
    rows = [[Cell(name, "dim"), Cell(text)] for name, text in facts]
    return Table([Column(fixed=True), Column()], rows)


def without_repeats(labels: Iterable[str]) -> Iterator[str]:
    """Yield labels; an empty text instead of one that equals the label before it.

    Example:
        >>> list(without_repeats(["state", "state", "action"]))
        ['state', '', 'action']
    """
    previous = None
    for label in labels:
        yield "" if label == previous else label
        previous = label


def sparkline(heights: Sequence[float], largest: float | None = None) -> str:
    """Return heights as block characters; 0 is a space.

    Example:
        >>> sparkline([0, 1, 4, 8])
        ' ▁▄█'
    """
    largest = largest or max(heights, default=0)
    levels = (math.ceil(height / largest * 8) if height else 0 for height in heights)
    return "".join(" ▁▂▃▄▅▆▇█"[level] for level in levels)


def stage_list(calls: Sequence[str]) -> list[Paragraph]:
    """Return the stages of a chain, numbered, one per line."""
    return [
        Paragraph([Cell(f"{index} ", "dim"), Cell(call)], indent=2)
        for index, call in enumerate(calls)
    ]


def micros(value: float | None) -> str:
    """Return a time in µs with three significant digits."""
    return "" if value is None else three_digits(value)

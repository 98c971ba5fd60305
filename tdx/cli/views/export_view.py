"""The layout of what an export or an import did."""

from __future__ import annotations

from collections.abc import Sequence

from tdx.cli.output.terminal import table_width
from tdx.cli.output.view import Block, Cell, Column, Heading, Paragraph, Table, View
from tdx.cli.views.dump_view import dump_facts, dump_head, flat_summary, size_text
from tdx.inspection.spec_text import shape_text
from tdx.rollouts.formats.interface import Exported, ExportedEntry, Imported


def export_view(found: Exported) -> View:
    """Lay out what was written, or would be.

    Args:
        found: what it is.
    """

    def blocks(width: int) -> list[Block]:
        told = f"{found.format} of {found.source}"
        aside = told if found.written else f"{told}  nothing is written"
        head = Heading(found.path, aside, level=1)
        return [
            head,
            _facts(found),
            *_notes(found.notes),
            Heading("entries"),
            _entries(found, width),
        ]

    records = [{"path": found.path, **each.to_dict()} for each in found.entries]
    return View("export", found.to_dict(), records, blocks)


def _facts(found: Exported) -> Table:
    batch = f" of each of {shape_text(found.batch_size)} envs" if found.batch_size else ""
    rows = {"steps": f"{found.steps:,}{batch}", "episodes": f"{found.episodes:,}"}
    if found.size is not None:
        before = "" if found.written else " before compression"
        rows["size"] = f"{size_text(found.size)}{before}"
    return Table(
        [Column(fixed=True), Column()],
        [[Cell(name, "dim"), Cell(text)] for name, text in rows.items()],
    )


def _entries(found: Exported, width: int) -> Table:
    titles = ("key", "in the file", "shape", "dtype")
    for dropped in ((), ("dtype",), ("dtype", "shape")):
        kept = [title for title in titles if title not in dropped]
        rows = [[_entry(each)[title] for title in kept] for each in found.entries]
        table = Table([Column(title, fixed=True) for title in kept], rows)
        if table_width(table) <= width:
            break
    return table


def _entry(each: ExportedEntry) -> dict[str, Cell]:
    return {
        "key": Cell(each.key, "name"),
        "in the file": Cell(each.place),
        "shape": Cell(shape_text(each.shape)),
        "dtype": Cell(each.dtype),
    }


def _notes(notes: Sequence[str]) -> list[Block]:
    return [Paragraph([Cell(note, "dim")]) for note in notes]


def import_view(found: Imported) -> View:
    """Lay out the dump that was made.

    Args:
        found: what it is.
    """
    data = found.summary

    def blocks(width: int) -> list[Block]:
        return [dump_head(data), dump_facts(data), *_notes(found.notes)]

    row = {**flat_summary(data), "imported": found.source, "format": found.format}
    return View("import", found.to_dict(), [row], blocks)

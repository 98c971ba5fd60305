"""The layout of the lists of envs and transforms."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from tdx.cli.output.terminal import table_width
from tdx.cli.output.view import Block, Cell, Column, Paragraph, Table, View
from tdx.pipeline.docstrings import strip_markup

if TYPE_CHECKING:
    from tdx.envs.gym.registry import RegisteredEnv
    from tdx.pipeline.catalog import TransformInfo


def envs_view(envs: Sequence[RegisteredEnv], search: str) -> View:
    """Lay out a list of envs.

    Args:
        envs: what was found.
        search: the words that were looked for.
    """
    records: list[dict[str, Any]] = [
        {"id": env.id, "package": env.package, "installed": env.installed, "hint": env.hint}
        for env in envs
    ]

    def blocks(width: int) -> list[Block]:
        if not envs:
            return [_none("env", search)]
        missing = any(env.hint for env in envs)
        titles = ["id", "package", *(["to install it"] if missing else [])]
        rows = [
            [
                Cell(env.id, "" if env.installed else "dim"),
                Cell(env.package, "dim"),
                *([Cell(env.hint or "")] if missing else []),
            ]
            for env in envs
        ]
        return [Table([Column(title) for title in titles], rows)]

    names = ("id", "package", "installed", "hint")
    return View("envs", {"search": search, "envs": records}, records, blocks, names)


def transforms_view(infos: Sequence[TransformInfo], search: str) -> View:
    """Lay out a list of transforms.

    Args:
        infos: what was found, category after category.
        search: the words that were looked for.
    """
    records: list[dict[str, Any]] = [
        {
            "name": info.name,
            "category": info.category,
            "time_behaviour": info.time_behaviour,
            "summary": info.summary,
            "signature": info.signature,
        }
        for info in infos
    ]

    def blocks(width: int) -> list[Block]:
        return [_transforms_table(infos, width)] if infos else [_none("transform", search)]

    names = ("name", "category", "time_behaviour", "summary", "signature")
    return View("transforms", {"search": search, "transforms": records}, records, blocks, names)


def _transforms_table(infos: Sequence[TransformInfo], width: int) -> Table:
    rows = [
        [Cell(category, "dim"), Cell(info.name, "name"), Cell(strip_markup(info.summary))]
        for category, info in zip(_once(infos), infos, strict=True)
    ]
    columns = [Column("category", fixed=True), Column("name", fixed=True), Column("summary")]
    wide = Table(columns, rows)
    if table_width(wide) <= width or width >= 90:
        return wide
    rows = []
    for category, info in zip(_once(infos), infos, strict=True):
        if category:
            rows.append([Cell(category, "dim"), Cell("")])
        rows.append([Cell(f"  {info.name}", "name"), Cell(strip_markup(info.summary))])
    return Table([Column(fixed=True), Column()], rows)


def _once(infos: Sequence[TransformInfo]) -> Iterator[str]:
    """The category of each, empty where it is that of the one before."""
    previous = ""
    for info in infos:
        yield "" if info.category == previous else info.category
        previous = info.category


def _none(what: str, search: str) -> Paragraph:
    return Paragraph([Cell(f"no {what} matches {search!r}" if search else f"no {what}", "dim")])

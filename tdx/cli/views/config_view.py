"""The layout of the settings."""

from __future__ import annotations

from tdx.cli.output.view import Block, Cell, Column, Heading, Table, View
from tdx.cli.views.comparison import NOTHING
from tdx.settings import Settings, SettingValue


def config_view(settings: Settings) -> View:
    """Lay out what is set, and where.

    Args:
        settings: what to show.
    """

    def blocks(width: int) -> list[Block]:
        there = "" if settings.exists else "not there; `tdx config init` writes it"
        titles = ("setting", "value", "from", "meaning")
        table = Table([Column(title) for title in titles], [_row(each) for each in settings.values])
        return [Heading(str(settings.path), there, level=1), table]

    records = [value.to_dict() for value in settings.values]
    return View("config", settings.to_dict(), records, blocks)


def _row(found: SettingValue) -> list[Cell]:
    names = {"environment": found.setting.variable, "file": "file", "default": "default"}
    value = NOTHING if found.value is None else str(found.value)
    given = found.source != "default"
    return [
        Cell(found.setting.name, "name"),
        Cell(value, "changed" if given else "dim"),
        Cell(names[found.source], "" if given else "dim"),
        Cell(found.setting.help),
    ]

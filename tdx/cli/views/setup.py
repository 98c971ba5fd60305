"""Views of the settings, the machine and the kinds of documents."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tdx.cli.views import (
    NONE,
    Block,
    Cell,
    Column,
    Heading,
    Paragraph,
    Style,
    Table,
    View,
    first_that_fits,
    without_repeats,
)
from tdx.foundation.serialization import Result
from tdx.foundation.settings import Settings, SettingValue
from tdx.foundation.text import count_text

if TYPE_CHECKING:
    from tdx.inspection.doctor import DoctorReport, Status


def setting_view(setting: SettingValue) -> View:
    """Show the value of one setting; nothing if it has none."""
    shown = [] if setting.value is None else [Paragraph([Cell(str(setting.value))])]
    return View("setting", setting, lambda: shown)


def config_view(settings: Settings) -> View:
    """Lay out the settings and where their values come from."""

    def blocks() -> list[Block]:
        state = "" if settings.exists else "missing; `tdx config init` creates it"
        rows = [_row(setting) for setting in settings.values]
        table = Table.of(("setting", "value", "from", "meaning"), rows)
        return [Heading(str(settings.path), state, level=1), table]

    return View("config", settings, blocks, lambda: settings.values)


def _row(setting: SettingValue) -> list[Cell]:
    names = {"environment": setting.setting.variable, "file": "file", "default": "default"}
    value = NONE if setting.value is None else str(setting.value)
    is_set = setting.source != "default"
    return [
        Cell(setting.setting.name, "name"),
        Cell(value, "changed" if is_set else "dim"),
        Cell(names[setting.source], "" if is_set else "dim"),
        Cell(setting.setting.help),
    ]


_STYLES: dict[Status, Style] = {"ok": "good", "warn": "changed", "fail": "bad"}


def doctor_view(report: DoctorReport) -> View:
    """Lay out the checks of a machine."""

    def blocks() -> list[Block]:
        counts = (("failure", report.failures), ("warning", report.warnings))
        summary = ", ".join(count_text(count, word) for word, count in counts if count)
        head = Heading("tdx doctor", summary or "no problems", level=1)
        groups = without_repeats(diagnosis.group for diagnosis in report.diagnoses)
        rows = [
            [
                Cell(group, "dim"),
                Cell(diagnosis.status, _STYLES[diagnosis.status]),
                Cell(diagnosis.name),
                Cell(diagnosis.value),
            ]
            for group, diagnosis in zip(groups, report.diagnoses, strict=True)
        ]
        columns = [Column(fixed=True), Column(fixed=True), Column(fixed=True), Column()]
        table = Table(columns, rows)
        hints: list[Block] = [
            Paragraph([Cell(f"{diagnosis.name}: ", "name"), Cell(diagnosis.hint)])
            for diagnosis in report.diagnoses
            if diagnosis.hint
        ]
        wide = [
            [*row, Cell(diagnosis.hint or "", "dim")]
            for row, diagnosis in zip(rows, report.diagnoses, strict=True)
        ]
        with_hints = Table([*columns, Column()], wide)
        narrow = [table, Heading("hints"), *hints] if hints else [table]
        return [head, first_that_fits(lambda: [with_hints], lambda: narrow)]

    return View("doctor", report, blocks, lambda: report.diagnoses)


@dataclass(frozen=True, slots=True)
class DocumentKind(Result):
    """A kind of document.

    Args:
        name: Value of its entry ``kind``.
        command: Command that prints it.
    """

    name: str
    command: str


@dataclass(frozen=True, slots=True)
class KindList(Result):
    """All kinds of documents."""

    kinds: tuple[DocumentKind, ...]


def kinds_view(commands: Mapping[str, str]) -> View:
    """Lay out the kinds of JSON documents."""
    kinds = tuple(DocumentKind(name, command) for name, command in commands.items())

    def blocks() -> list[Block]:
        rows = [[Cell(kind.name, "name"), Cell(kind.command)] for kind in kinds]
        return [Table([Column("kind", fixed=True), Column("printed by")], rows)]

    return View("kinds", KindList(kinds), blocks, lambda: kinds)

"""Settings and the checks of ``tdx doctor``."""

from __future__ import annotations

from tdx.cli.output.terminal import table_width
from tdx.cli.output.view import Block, Cell, Column, Heading, Paragraph, Style, Table, View
from tdx.cli.views.elements import NONE, count_text
from tdx.inspection.doctor import Diagnosis, DoctorReport, Status
from tdx.settings import Settings, SettingValue


def config_view(settings: Settings) -> View:
    """Lay out the settings and where their values come from.

    Args:
        settings: Settings to show.
    """

    def blocks(width: int) -> list[Block]:
        state = "" if settings.exists else "missing; `tdx config init` creates it"
        titles = ("setting", "value", "from", "meaning")
        table = Table([Column(title) for title in titles], [_row(each) for each in settings.values])
        return [Heading(str(settings.path), state, level=1), table]

    records = [found.to_dict() for found in settings.values]
    return View("config", settings.to_dict(), records, blocks)


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
    """Lay out the checks of a machine.

    Args:
        report: Report to show.
    """

    def blocks(width: int) -> list[Block]:
        head = Heading("tdx doctor", _summary(report), level=1)
        rows, group = [], ""
        for each in report.diagnoses:
            label = "" if each.group == group else each.group
            group = each.group
            status = Cell(each.status, _STYLES[each.status])
            rows.append([Cell(label, "dim"), status, Cell(each.name), Cell(each.value)])
        columns = [Column(fixed=True), Column(fixed=True), Column(fixed=True), Column()]
        table = Table(columns, rows)
        hints = [each for each in report.diagnoses if each.hint]
        wide = [
            [*row, Cell(each.hint or "", "dim")]
            for row, each in zip(rows, report.diagnoses, strict=True)
        ]
        with_hints = Table([*columns, Column()], wide)
        if table_width(with_hints) <= width:
            return [head, with_hints]
        return [head, table, *([Heading("hints")] if hints else []), *map(_hint, hints)]

    records = [each.to_dict() for each in report.diagnoses]
    return View("doctor", report.to_dict(), records, blocks)


def _summary(report: DoctorReport) -> str:
    counts = (("failure", report.count("fail")), ("warning", report.count("warn")))
    return ", ".join(count_text(count, word) for word, count in counts if count) or "no problems"


def _hint(diagnosis: Diagnosis) -> Paragraph:
    return Paragraph([Cell(f"{diagnosis.name}: ", "name"), Cell(diagnosis.hint or "")])

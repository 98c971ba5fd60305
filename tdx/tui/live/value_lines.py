"""The lines of the table of values: each stage, and below it what it wrote."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from tdx.inspection.live.views import HookView, TraceView, ValueView
from tdx.tui.live.lines import Line, cut

_BARS = "▁▂▃▄▅▆▇█"
_BY_STAGE = {"new": ("+ ", "good"), "changed": ("● ", "accent"), "same": ("· ", "muted")}
_SINCE = {"new": ("+ ", "good"), "changed": ("~ ", "warn"), "same": ("  ", "muted")}
_NUMBER = 9
HEAD = -2
"""The place of the line that says what the columns are."""
_WITH_DTYPE, _WITH_COLUMNS = 58, 36


@dataclass(frozen=True, slots=True)
class ValueLine:
    """One line and what it stands for.

    Args:
        line: how it is drawn.
        key: the key; none where it is a stage's heading.
        stage: the place in the chain; -1 for what is no stage.
        label: what it is found by.
    """

    line: Line
    key: str | None
    stage: int
    label: str = ""


def value_lines(
    view: TraceView, width: int, *, difference: bool = False, only_written: bool = True
) -> list[ValueLine]:
    """Every line.

    Args:
        view: what there is to see.
        width: of the lines.
        difference: show what the values were in the other trace beside what they are.
        only_written: leave out what a stage hands on as it was.
    """
    return list(_Lines(view, width, difference, only_written).all())


class _Lines:
    def __init__(self, view: TraceView, width: int, difference: bool, only_written: bool) -> None:
        self.view, self.width = view, width
        self.difference, self.only_written = difference, only_written
        longest = max((len(value.version) for value in view.values), default=8)
        self.name = min(longest, max(12, width // 3))

    def all(self) -> Iterator[ValueLine]:
        view = self.view
        if not self.difference and self.width - 5 - self.name >= _WITH_COLUMNS:
            yield ValueLine((self._columns(),), None, HEAD)
        for number, place in enumerate(view.places):
            last = number == len(view.places) - 1
            yield self._heading(place, failed=last and view.error is not None)
            for lie in place.violations:
                yield ValueLine((("  ✕ ", "bad"), (cut(lie, self.width - 4), "bad")), None, -1)
            shown = place.written if self.only_written else place.present
            for at in shown:
                yield from self._value(view.values[at], place, at in place.written)
            for key in place.dropped:
                line = (("  - ", "bad"), (key, "muted"), ("  ends", "muted"))
                yield ValueLine(line, key, -1, key)
        if view.error is not None:
            yield ValueLine((("  ✕ ", "bad"), (cut(view.error, self.width - 4), "bad")), None, -1)

    def _columns(self) -> tuple[str, str]:
        """What the columns are."""
        left = self.width - 5 - self.name
        kind = "shape and dtype".ljust(19) if left >= _WITH_DTYPE else ""
        numbers = "".join(name.rjust(_NUMBER) for name in ("min", "mean", "max"))
        return f"    {'version'.ljust(self.name + 1)}{kind}{numbers} histogram", "muted"

    def _heading(self, place: HookView, failed: bool) -> ValueLine:
        arrow = "↑" if place.lane == "inverse" else "↓"
        time = f" {_milliseconds(place.time_ns)}"
        title = cut(place.title, self.width - len(time) - 4)
        rule = "─" * max(0, self.width - len(title) - len(time) - 4)
        style = "bad" if failed or place.violations else "primary"
        line = ((f"{arrow} ", "accent"), (title, style), (f" {rule}", "muted"), (time, "muted"))
        return ValueLine(line, None, place.index, place.title)

    def _value(self, value: ValueView, place: HookView, written: bool) -> Iterator[ValueLine]:
        troubled = bool(value.violations or value.nans or value.infinities)
        name_style = "bad" if troubled else "bold" if written else "muted"
        undeclared = value.key in place.undeclared and written
        head: list[tuple[str, str]] = [
            _BY_STAGE[value.by_writer] if written and place.kind == "stage" else ("  ", "plain"),
            ("✕ ", "bad") if troubled else _SINCE[value.change],
            (cut(value.version, self.name).ljust(self.name + 1), name_style),
        ]
        left = self.width - 5 - self.name
        body = self._compared(value, left) if self.difference else self._numbers(value, left)
        yield ValueLine((*head, *body), value.key, place.index, value.version)
        notes = [*value.violations] if written else []
        if undeclared:
            notes.append("written without being named in its out_keys")
        for note in notes:
            text = cut(note, self.width - 6)
            yield ValueLine((("    └ ", "bad"), (text, "bad")), value.key, place.index)

    def _numbers(self, value: ValueView, left: int) -> Iterator[tuple[str, str]]:
        style = "plain" if value.change != "same" else "muted"
        flag = _flag(value)
        if left >= _WITH_DTYPE:
            yield (cut(f"{_shape(value)} {value.dtype}", 18).ljust(19), "muted")
            left -= 19
        if left < _WITH_COLUMNS:
            yield from self._short(value, left, style)
        elif value.minimum == value.maximum and value.mean is not None and not value.nans:
            yield (_text(value).rjust(2 * _NUMBER), style)
        else:
            for number in (value.minimum, value.mean, value.maximum):
                yield (_number(number).rjust(_NUMBER), style)
            yield (f" {_bars(value.histogram).ljust(8)}", "secondary")
            room = left - 3 * _NUMBER - 11
            if room > 12 and not flag:
                yield (f" {cut(_text(value), room)}", "muted")
        if flag:
            yield (f" {flag}", "bad")

    def _short(self, value: ValueView, left: int, style: str) -> Iterator[tuple[str, str]]:
        """The numbers where there is no room for columns."""
        bars = _bars(value.histogram)
        room = left - (9 if bars else 0) - len(_flag(value)) - 1
        text = _text(value)
        if len(text) > room and value.minimum is not None:
            text = f"{_number(value.minimum)} … {_number(value.maximum)}"
        yield (cut(text, room).ljust(room + 1), style)
        yield (bars, "secondary")

    def _compared(self, value: ValueView, left: int) -> Iterator[tuple[str, str]]:
        """What it was, what it is, and how far they are apart."""
        delta = "" if value.delta is None else _number(value.delta)
        room = max(4, (left - _NUMBER - 5) // 2)
        if value.change == "same":
            yield (cut(_text(value), room).ljust(room), "muted")
            yield ("   as it was", "muted")
            return
        yield (cut(value.before or "not there", room).ljust(room), "muted")
        yield (" → ", "accent")
        yield (cut(_text(value), room).ljust(room), "plain")
        if delta:
            yield (f" Δ{delta}".rjust(_NUMBER + 2), "warn")


def _flag(value: ValueView) -> str:
    parts = []
    if value.nans:
        parts.append(f"{value.nans} nan")
    if value.infinities:
        parts.append(f"{value.infinities} inf")
    return " ".join(parts)


def _text(value: ValueView) -> str:
    if value.is_image:
        return f"image {'×'.join(map(str, value.shape))}"
    return value.text


def _shape(value: ValueView) -> str:
    return f"[{','.join(map(str, value.shape))}]"


def _bars(counts: tuple[int, ...]) -> str:
    most = max(counts, default=0)
    if not most:
        return ""
    return "".join(_BARS[min(7, math.ceil(7 * count / most))] if count else " " for count in counts)


def _number(number: float | None) -> str:
    if number is None:
        return "–"
    text = f"{number:.4g}"
    return text if len(text) < _NUMBER else f"{number:.1e}"


def _milliseconds(nanoseconds: int) -> str:
    if nanoseconds < 100_000:
        return f"{nanoseconds / 1e3:.0f} µs"
    return f"{nanoseconds / 1e6:.2f} ms"

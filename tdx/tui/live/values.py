"""Table of values: what each stage wrote, what changed, and what is wrong."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial

from rich.cells import cell_len, set_cell_size

from tdx.inspection.live.views import HookView, TraceView, ValueView
from tdx.tui.chain_status import truncate, truncate_middle
from tdx.tui.line_widgets import LineList, TextLine
from tdx.tui.profile.numbers import NUMBER_WIDTH, format_duration, format_number

_BARS = "▁▂▃▄▅▆▇█"
_BY_STAGE = {"new": ("+ ", "good"), "changed": ("● ", "accent"), "same": ("· ", "muted")}
_SINCE = {"new": ("+ ", "good"), "changed": ("~ ", "warn"), "same": ("  ", "muted")}
COLUMN_HEADER = -2
"""Place of the line with the column titles."""
_MIN_WITH_BARS, _MIN_WITH_DELTA = 18, 30
_COLUMNS_WIDTH, _CHANGED_WIDTH, _DTYPE_WIDTH = 37, 10, 19
_MIN_WITH_CHANGED = _COLUMNS_WIDTH + _CHANGED_WIDTH
_MIN_WITH_DTYPE = _MIN_WITH_CHANGED + _DTYPE_WIDTH
_VECTOR_WIDTH = 11  # of a number in a vector


@dataclass(frozen=True, slots=True)
class ValueLine:
    """A line of the table."""

    line: TextLine
    key: str | None
    stage: int  # place in the chain; -1 if the line belongs to no stage
    label: str = ""  # text for the search


def build_value_lines(
    view: TraceView,
    width: int,
    *,
    difference: bool = False,
    only_written: bool = True,
    first_differences: Mapping[str, int] | None = None,
) -> list[ValueLine]:
    """Return all lines.

    ``difference`` shows the values of the reference trace too, ``only_written`` hides keys that a
    stage passes on unchanged, and ``first_differences`` has the first trace that differs from the
    earlier rollout, by key.
    """
    first = first_differences if view.is_earlier and first_differences else {}
    longest = max((cell_len(value.version) for value in view.values), default=8)
    name = min(longest, max(12, width * 2 // 5))
    return list(_LineBuilder(view, width, difference, only_written, first, name).all())


@dataclass
class _LineBuilder:
    view: TraceView
    width: int
    difference: bool
    only_written: bool
    first_differences: Mapping[str, int]
    name: int  # width of the names

    def all(self) -> Iterator[ValueLine]:
        view = self.view
        if not self.difference and self.width - 5 - self.name >= _COLUMNS_WIDTH:
            yield ValueLine((self._columns(),), None, COLUMN_HEADER)
        for number, place in enumerate(view.places):
            last = number == len(view.places) - 1
            yield self._heading(place, failed=last and view.error is not None)
            for violation in place.violations:
                yield ValueLine(
                    (("  ✕ ", "bad"), (truncate(violation, self.width - 4), "bad")), None, -1
                )
            shown = (*place.written, *place.passed) if self.only_written else place.present
            for at in shown:
                yield from self._value(view.values[at], place, at in place.written)
            for key in place.dropped:
                line = (("  - ", "bad"), (key, "muted"), ("  removed", "muted"))
                yield ValueLine(line, key, -1, key)
        if view.error is not None:
            yield ValueLine(
                (("  ✕ ", "bad"), (truncate(view.error, self.width - 4), "bad")), None, -1
            )

    def _columns(self) -> tuple[str, str]:
        """Return the column titles."""
        left = self.width - 5 - self.name
        changed = "changed".ljust(_CHANGED_WIDTH) if left >= _MIN_WITH_CHANGED else ""
        kind = "shape and dtype".ljust(_DTYPE_WIDTH) if left >= _MIN_WITH_DTYPE else ""
        numbers = "".join(name.rjust(NUMBER_WIDTH) for name in ("min", "mean", "max"))
        title = f"    {'version'.ljust(self.name + 1)}{changed}{kind}{numbers} histogram"
        return title, "muted"

    def _heading(self, place: HookView, failed: bool) -> ValueLine:
        arrow = "↑" if place.lane == "inverse" else "↓"
        # The time of a wrapper of Gymnasium is part of that in the other direction.
        time = f" {format_duration(place.time_ns / 1e3)}" if place.time_ns else ""
        title = truncate(place.title, self.width - len(time) - 4)
        rule = "─" * max(0, self.width - len(title) - len(time) - 4)
        style = "bad" if failed or place.violations else "primary"
        line = ((f"{arrow} ", "accent"), (title, style), (f" {rule}", "muted"), (time, "muted"))
        return ValueLine(line, None, place.index, place.title)

    def _value(self, value: ValueView, place: HookView, written: bool) -> Iterator[ValueLine]:
        has_problem = bool(value.violations or value.nans or value.infinities)
        name_style = "bad" if has_problem else "bold" if written else "muted"
        undeclared = value.key in place.undeclared and written
        is_changing = {key: (changed, count) for key, changed, count in place.changes}
        sign = ("  ", "plain")
        if place.kind == "stage" and written:
            sign = _BY_STAGE[value.by_writer]
        elif value.key in is_changing:
            sign = _BY_STAGE["same"]
        head: list[tuple[str, str]] = [
            sign,
            ("✕ ", "bad") if has_problem else _SINCE[value.change],
            (set_cell_size(truncate_middle(value.version, self.name), self.name + 1), name_style),
        ]
        left = self.width - 5 - self.name - (7 if self.first_differences else 0)
        body = (
            self._comparison_parts(value, left)
            if self.difference
            else self._numbers(value, left, _changed_text(*is_changing.get(value.key, (0, 0))))
        )
        first = self.first_differences.get(value.key)
        is_other = first is not None and written and value.change != "same"
        mark = ((f" ≠{first}", "warn"),) if is_other else ()
        yield ValueLine((*head, *body, *mark), value.key, place.index, value.version)
        notes = [*value.violations] if written else []
        if undeclared:
            notes.append("written, but missing in out_keys")
        for note in notes:
            text = truncate(note, self.width - 6)
            yield ValueLine((("    └ ", "bad"), (text, "bad")), value.key, place.index)

    def _numbers(self, value: ValueView, left: int, changed: str) -> Iterator[tuple[str, str]]:
        style = "plain" if value.change != "same" else "muted"
        flag = _nonfinite_text(value)
        has_dtype = left >= _MIN_WITH_DTYPE
        if left >= _MIN_WITH_CHANGED:
            yield (changed.ljust(_CHANGED_WIDTH), "muted")
            left -= _CHANGED_WIDTH
        if has_dtype:
            shape = ",".join(map(str, value.shape))
            kind = truncate(f"[{shape}] {value.dtype}", _DTYPE_WIDTH - 1)
            yield (kind.ljust(_DTYPE_WIDTH), "muted")
            left -= _DTYPE_WIDTH
        has_numbers = value.minimum is not None or value.nans or value.infinities
        if not has_numbers and left >= _COLUMNS_WIDTH:
            yield (_value_text(value, left), style)
        elif left < _COLUMNS_WIDTH + (len(flag) + 1 if flag else 0):
            yield from self._short(value, left, style)
        elif not flag and left - _COLUMNS_WIDTH < _VECTOR_WIDTH * math.prod(value.shape) <= left:
            # A short vector says more than its mean, if both do not fit.
            yield (_value_text(value, left), style)
        elif value.minimum == value.maximum and value.mean is not None and not value.nans:
            yield (value.text.rjust(2 * NUMBER_WIDTH), style)
        else:
            for number in (value.minimum, value.mean, value.maximum):
                yield (format_number(number).rjust(NUMBER_WIDTH), style)
            yield (f" {_histogram_bars(value.histogram).ljust(8)}", "secondary")
            room = left - 3 * NUMBER_WIDTH - 11
            if room > 12 and not flag:
                yield (f" {_value_text(value, room)}", "muted")
        if flag:
            yield (f" {flag}", "bad")

    def _short(self, value: ValueView, left: int, style: str) -> Iterator[tuple[str, str]]:
        """Yield the numbers if the columns do not fit."""
        bars = _histogram_bars(value.histogram) if left >= _MIN_WITH_BARS else ""
        flag = _nonfinite_text(value)
        room = max(0, left - len(bars) - 1 - (len(flag) + 1 if flag else 0))
        text = _value_text(value)
        # A vector whose numbers may not fit is a range in each step, so that the form stays.
        count = 0 if value.is_image else math.prod(value.shape)
        is_long = len(text) > room or (count > 1 and count * _VECTOR_WIDTH > room)
        if is_long and value.minimum is not None and value.minimum == value.maximum:
            text = f"all {format_number(value.minimum)}"
        elif is_long and value.minimum is not None:
            text = f"{format_number(value.minimum)} … {format_number(value.maximum)}"
            if len(text) > room and value.maximum is not None:
                text = f"{value.minimum:.2g} … {value.maximum:.2g}"
        yield (truncate(text, room).ljust(room + 1), style)
        yield (bars, "secondary")

    def _comparison_parts(self, value: ValueView, left: int) -> Iterator[tuple[str, str]]:
        """Yield the previous value, the value, and their difference."""
        has_delta = left >= _MIN_WITH_DELTA
        room = max(4, (left - 3 - (NUMBER_WIDTH + 2 if has_delta else 0)) // 2)
        if value.change == "same":
            # The text may reach into the columns of the difference, but leaves room for the note.
            note = "   unchanged" if left - len("   unchanged") >= 5 else ""
            yield (_value_text(value, left - len(note)).ljust(room), "muted")
            yield (note, "muted")
            return
        text = _value_text(value, room)
        if value.is_image and text.endswith("…"):
            yield (_value_text(value, left).ljust(left), "plain")
            return
        # The numbers of an image say less than that it is one.
        before = "image" if value.is_image and value.before else value.before or "missing"
        yield (truncate(before, room).ljust(room), "muted")
        yield (" → ", "accent")
        yield (text.ljust(room), "plain")
        if has_delta and value.delta is not None:
            yield (f" Δ{format_number(value.delta)}".rjust(NUMBER_WIDTH + 2), "warn")


def _changed_text(changed: int, count: int) -> str:
    """Return in how many of the steps so far a stage changed a value.

    Example:
        >>> _changed_text(10, 60), _changed_text(5_000, 20_000)
        ('10/60', '25%')
    """
    text = f"{changed}/{count}" if count else ""
    return text if len(text) < _CHANGED_WIDTH else f"{changed / count:.0%}"


def _nonfinite_text(value: ValueView) -> str:
    counts = ((value.nans, "nan"), (value.infinities, "inf"))
    return " ".join(f"{count} {name}" for count, name in counts if count)


def _value_text(value: ValueView, room: int = sys.maxsize) -> str:
    """Return a value; of an image, its shape."""
    if not value.is_image:
        return truncate(value.text, room)
    shape = "×".join(map(str, value.shape))
    return f"image {shape}" if len(shape) + 6 <= room else truncate(shape, room)


def _histogram_bars(counts: tuple[int, ...]) -> str:
    most = max(counts, default=0)
    if not most:
        return ""
    return "".join(_BARS[min(7, math.ceil(7 * count / most))] if count else " " for count in counts)


class ValueTable(LineList):
    """Shows the values of a trace."""

    HELP = """## Values

What each stage wrote in this step, starting with the env, and what it passed on here but changes in
other steps; `changed` counts these steps since the session began. `reward@0` is the value of
`reward` from the env, `reward@1` the value that the first stage to write it makes of it. The first
sign compares with the input of the stage: `+` is a new key, `●` a changed value, `·` the same
value. The second sign compares with the previous step: `+` is a new key, `~` a changed value; `✕`
marks nan and spec violations.

`Enter` plots a key, `o` shows all keys after each stage, and `d` shows the differences to the
previous step, or to the step marked with `m`."""

    def __init__(self) -> None:
        super().__init__(id="live-values")
        self.border_title = "values"
        self.view: TraceView | None = None
        self.difference = False
        self.only_written = True
        self._first_differences: Mapping[str, int] = {}
        self.value_lines: list[ValueLine] = []
        self._followed: tuple[int, int] | None = None  # a stage and its line
        self._seeks_mark = False  # the values with the first mark may come later

    def show_view(self, view: TraceView) -> None:
        """Show a trace; the cursor follows the selected stage until it is moved."""
        self.view, followed = view, self._followed
        follows = followed is not None and self.cursor == self._inside(followed[1])
        self._fill()
        if followed is not None and follows and self._heading_of(followed[0]) != followed[1]:
            self.go_to_stage(followed[0])

    def set_difference(self, on: bool) -> None:
        """Show the values of the reference trace and go to the first mark, or hide them."""
        self.difference = self._seeks_mark = on
        self._fill()

    def set_first_differences(self, first: Mapping[str, int]) -> None:
        """Mark keys with the first trace that differs from the earlier rollout."""
        if first != self._first_differences:
            self._first_differences = first
            self._fill()

    def set_only_written(self, on: bool) -> None:
        """Hide keys that a stage passes on unchanged, or show them."""
        self.only_written = on
        self._fill()

    def on_resize(self) -> None:
        super().on_resize()
        self._fill()
        # The header grows when a comparison begins: the cursor stays in view.
        if self._followed is not None and self.cursor == self._followed[1]:
            self.go_to_stage(self._followed[0])
        else:
            self.go_to_line(self.cursor)

    @property
    def key(self) -> str | None:
        """The key under the cursor."""
        return self.value_lines[self.cursor].key if self.cursor < len(self.value_lines) else None

    def search_lines(self) -> list[str]:
        """Return the search text of each line: stage, version of a key, or nothing."""
        return [line.label for line in self.value_lines]

    def go_to_stage(self, stage: int) -> None:
        """Scroll to the heading of a stage; -1 is the env."""
        at = self._heading_of(stage)
        self._followed = stage, self.cursor if at is None else at
        if at is not None:
            self.cursor = at
            self.scroll_to(y=at, animate=False, force=True)
            self.refresh()

    def _heading_of(self, stage: int) -> int | None:
        lines = enumerate(self.value_lines)
        headings = (at for at, line in lines if line.key is None and line.line[0][1] == "accent")
        return next((at for at in headings if self.value_lines[at].stage == stage), None)

    def _fill(self) -> None:
        if self.view is None or not self.size.width:
            return
        build = partial(
            build_value_lines,
            self.view,
            difference=self.difference,
            only_written=self.only_written,
            first_differences=self._first_differences,
        )
        before = self.value_lines[self.cursor : self.cursor + 1]
        self.value_lines = build(self.size.width)
        if len(self.value_lines) > self.size.height:
            self.value_lines = build(self.size.width - self.styles.scrollbar_size_vertical)
        against = self.view.against
        other = "" if against is None else f" to trace {against}"
        if self.view.is_earlier:
            other = " to the earlier rollout"
        title = f"differences{other}" if self.difference else "values"
        if self.view.is_earlier and not self.difference:
            title = "values · d shows the earlier rollout"
        if title != self.border_title:
            self.border_title = title
        self.first = int(bool(self.value_lines) and self.value_lines[0].stage == COLUMN_HEADER)
        self.show([line.line for line in self.value_lines])
        if before and before[0].label:
            # Other traces may have more lines above: the cursor stays at its key or stage.
            same = (before[0].stage, before[0].label)
            lines = enumerate(self.value_lines)
            at = next((at for at, line in lines if (line.stage, line.label) == same), self.cursor)
            if at != self.cursor:
                self.go_to_line(at)
        if self._seeks_mark:
            texts = ("".join(text for text, _ in line.line) for line in self.value_lines)
            mark = next((at for at, text in enumerate(texts) if " ≠" in text), None)
            if mark is not None:
                self._seeks_mark = False
                self.go_to_line(mark)

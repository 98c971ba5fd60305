"""Details of the selected part: histogram, percentiles, waits and operators."""

from __future__ import annotations

from collections.abc import Iterator

from textual.app import ComposeResult
from textual.containers import Container
from textual.content import Content
from textual.geometry import Size
from textual.widgets import Static

from tdx.tui.profile.columns import CostLine
from tdx.tui.profile.messages import CostRow, OperatorCost
from tdx.tui.profile.numbers import draw_bar, draw_histogram, format_count, format_micros

_BAR_WIDTH = 8
_MIN_HISTOGRAM_CALLS = 12
"""Number of calls below which a histogram says no more than the figures."""


def histogram_text(line: CostLine, width: int, height: int) -> Content:
    """Return the histogram of a line's calls with percentiles and notes.

    Args:
        line: Line; with several modes, its last mode.
        width: Available width in cells.
        height: Number of lines for the bars.
    """
    row = line.detail_row
    head, facts = _part_heading(line, row), _percentile_text(row)
    wide = max(1, min(6, (width - 1) // len(row.counts)))
    low, high = format_micros(row.low_us), f"{format_micros(row.high_us)}+"
    if row.n < _MIN_HISTOGRAM_CALLS:
        return Content("\n").join([head, Content(facts), *_notes(row)])
    if height == 1:
        half = draw_histogram(row.counts, max(1, wide // 2), 1)[0]
        bars = Content.assemble((f"{low} ", "dim"), (half, "$primary"), (f" {high}", "dim"))
        return Content("\n").join([head, bars, *_notes(row)])
    drawn = draw_histogram(row.counts, wide, height)
    bars = Content("\n").join(Content.styled(text, "$primary") for text in drawn)
    gap = " " * max(1, wide * len(row.counts) - len(low) - len(high))
    under = Content.styled(f"{low}{gap}{high}", "dim")
    if width - head.cell_length > len(facts) + 2:
        return Content("\n").join([Content.assemble(head, "  ", facts), bars, under, *_notes(row)])
    return Content("\n").join([head, bars, under, Content(facts), *_notes(row)])


def _part_heading(line: CostLine, row: CostRow) -> Content:
    per = "step" if row.per_step else "call"
    mode = f" {line.mode}" if line.mode else ""
    return Content.assemble(
        (row.label, "bold"), f" {row.lane}{mode}", (f"  µs per {per}, n {row.n:,}", "dim")
    )


def _percentile_text(row: CostRow) -> str:
    names = ("p50", "p95", "p99", "max")
    facts = "  ".join(f"{name} {format_micros(row.figures[name])}" for name in names)
    if row.device_us is not None:
        waits = ", waits for the host" if row.launch_bound else ""
        facts += f"  GPU {format_micros(row.device_us)} in {row.kernels or 0:.1f} kernels{waits}"
    return facts


def _notes(row: CostRow) -> Iterator[Content]:
    """Yield where the host waits, and what the chain saves without the stages of a row."""
    for sync in row.syncs:
        text = f"waits for the GPU {format_count(sync.calls)} × per step at {sync.where}"
        yield Content.styled(text, "$text-warning")
    for index, each in sorted(row.marginals.items()):
        name = f"without {row.number(index)} {each.name}"
        if each.saved_us is not None:
            clear = abs(each.saved_us) > each.noise_us
            verb = "saves" if each.saved_us >= 0 else "costs"
            amount = (
                f"{format_micros(abs(each.saved_us))} µs per step ± {format_micros(each.noise_us)}"
            )
            within = "" if clear else ", within the noise"
            yield Content.assemble((f"{name} the chain {verb} ", "dim"), amount, (within, "dim"))
        elif each.needed is not None:
            yield Content.styled(f"{name} the chain fails: {each.needed}", "dim")


def operators_text(row: CostRow, width: int, height: int) -> Content:
    """Return the operators of a part, the most expensive first.

    Args:
        row: The part.
        width: Available width in cells.
        height: Available lines; a single line has no bars.
    """
    found = row.operators
    if found is None:
        return Content("")
    if not found:
        return Content.styled("no torch operators", "dim")
    if height == 1:
        return _operators_on_one_line(found, width)
    shown = found if len(found) < height else found[: height - 2]
    lines = [_operators_heading(found, width)]
    lines += [_operator_line(each, found[0].time_us) for each in shown]
    rest = found[len(shown) :]
    if rest:
        text = f"{len(rest)} more, {format_micros(sum(each.time_us for each in rest))} µs"
        lines.append(Content.styled(text.rjust(len(text) + 8), "dim"))
    return Content("\n").join(lines)


def _operators_heading(found: tuple[OperatorCost, ...], width: int) -> Content:
    calls = sum(each.calls for each in found)
    note = f"  µs and calls per step, {format_count(calls)} in all; this pass is slower"
    note = note if len(note) + 9 <= width else "  µs × calls, in a slower pass"
    return Content.assemble(("operators", "bold"), (note, "dim"))


def _operator_line(each: OperatorCost, most: float) -> Content:
    name = each.name.removeprefix("aten::")
    return Content.assemble(
        f"{format_micros(each.time_us):>7} ",
        (draw_bar(each.time_us / most if most else 0.0, _BAR_WIDTH), "$primary"),
        (f" {format_count(each.calls):>5} × ", "dim"),
        name,
    )


def _operators_on_one_line(found: tuple[OperatorCost, ...], width: int) -> Content:
    parts: list[Content] = []
    for each in found:
        name, calls = each.name.removeprefix("aten::"), format_count(each.calls)
        part = Content.assemble(name, (f" {format_micros(each.time_us)} × {calls}", "dim"))
        if sum(part.cell_length + 3 for part in [*parts, part]) > width and parts:
            break
        parts.append(part)
    return Content.styled(" · ", "dim").join(parts)


LOW, HIGH = 20, 30
"""Heights of the tab below which the details are short, and from which they are long."""
_SIDE_BY_SIDE_WIDTH = 84
"""Minimum width for operators next to the histogram."""


class PartPane(Container):
    """Histogram of a part and its operators."""

    def __init__(self) -> None:
        super().__init__(id="profile-part")

    def compose(self) -> ComposeResult:
        yield Static("", id="profile-histogram")
        yield Static("", id="profile-operators")

    def show(self, line: CostLine | None, room: Size) -> None:
        """Show a part.

        Args:
            line: Line of the part. ``None``: hide the pane.
            room: Size of the whole tab.
        """
        self.display = line is not None
        if line is None:
            return
        row = line.detail_row
        has_operators = row.operators is not None
        bars = 1 if room.height < LOW else 6 if room.height >= HIGH and not has_operators else 3
        is_side_by_side = has_operators and room.width >= _SIDE_BY_SIDE_WIDTH and bars > 1
        self.set_class(is_side_by_side, "-side-by-side")
        width = max(10, room.width // 2 - 2 if is_side_by_side else room.width)
        self.query_one("#profile-histogram", Static).update(histogram_text(line, width, bars))
        operators = self.query_one("#profile-operators", Static)
        operators.display = has_operators
        height = bars + 3 if is_side_by_side else 1 if bars == 1 else 5
        operators.update(operators_text(row, width, height))
        # Keep the height, so that the table does not move with the cursor.
        self.styles.min_height = 1 + bars + (1 if bars == 1 else 3)

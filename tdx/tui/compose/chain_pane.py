"""The chain pane: the stages as rows with status marks, and the keys that edit them."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from rich.cells import cell_len, set_cell_size
from rich.segment import Segment
from rich.style import Style
from textual import events, on
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical
from textual.geometry import Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip

from tdx.foundation.keys import format_key
from tdx.foundation.text import count_text
from tdx.inspection.live.views import StageReading
from tdx.pipeline.editing import Draft
from tdx.pipeline.grammar import format_arguments
from tdx.tui.chain_status import (
    ENV,
    ChainStatus,
    ErrorStore,
    compact_shape,
    truncate,
    truncate_middle,
)
from tdx.tui.profile.numbers import draw_histogram, format_duration
from tdx.tui.workspace import Readings, Workspace

Badge = Literal["", "failed", "error", "warning", "suggestion", "off", "unknown"]
_MIN_WRAPPED = 16
"""Width of the pane below which arguments are cut."""
_MIN_NAME, _MAX_NAME = 8, 28
"""Widths of a key below the output."""


@dataclass(frozen=True, slots=True)
class ChainRow:
    """A row of the chain list."""

    # What the row shows; ``arguments`` that do not fit beside the name of a stage are below it,
    # and so is a ``reading`` while the env is stepped
    kind: Literal["env", "stage", "arguments", "problem", "reading", "output", "key"]
    place: int
    title: str
    detail: str = ""  # text after the name
    badge: Badge = ""  # status of the stage
    line: str = ""  # sparkline of a reading
    cost: str = ""  # measured time per step


def build_chain_rows(
    draft: Draft,
    status: ChainStatus,
    errors: ErrorStore,
    readings: Readings,
    costs: Mapping[int, str],
) -> list[ChainRow]:
    """Return the rows for a chain and its status."""

    def worst_severity(number: int | None) -> Badge:
        severities = {lint.finding.severity for lint in status.lints.get(number, ())}
        ranked: tuple[Badge, ...] = ("error", "warning", "suggestion")
        return next((badge for badge in ranked if badge in severities), "")

    rows: list[ChainRow] = []
    badge: Badge
    env = draft.env
    if env is None:
        rows.append(ChainRow("env", ENV, "no env yet", "press e"))
    else:
        failures = errors.at(None)
        parts = (
            f"×{env.num_envs}" if env.num_envs is not None else "",
            "pixels" if env.from_pixels else "",
            env.device or "",
            f"seed {env.seed}" if env.seed is not None else "",
        )
        detail = " ".join(part for part in parts if part)
        badge = "failed" if failures else worst_severity(None)
        # The folder of a function's file or of a checkpoint tells less than its name.
        is_path = env.code is not None or (draft.stack is not None and draft.stack.is_data)
        name = env.id.rpartition("/")[2] if is_path else env.id
        rows.append(ChainRow("env", ENV, name, detail, badge, cost=costs.get(ENV, "")))
        rows += [ChainRow("problem", ENV, error.problem.message) for error in failures]
    for place, stage in enumerate(draft.stages):
        failures = errors.at(stage.number) if stage.enabled else ()
        badge = "failed"
        if not stage.enabled:
            badge = "off"
        elif not failures:
            # Without a working env, nothing is known of its stages.
            is_unknown = None in status.problems or stage.number not in status.last_good
            badge = "unknown" if is_unknown else worst_severity(stage.number)
        code, wrapper = stage.config.code, stage.wrapper
        name = stage.config.name if code is None else code.name
        arguments = format_arguments(stage.config.args, stage.config.kwargs)
        detail = arguments if wrapper is None else wrapper.text
        rows.append(ChainRow("stage", place, name, detail, badge, cost=costs.get(place, "")))
        rows += [ChainRow("problem", place, error.problem.message) for error in failures]
        if place in readings and not failures:
            rows.append(_build_reading_row(readings[place], has_cost=place in costs))
    words = {"inspecting": "inspecting …", "failed": "unknown", "empty": ""}
    keys = "unknown"
    if status.overview is not None:
        keys = f"{sum(1 for change in status.overview.changes if change.after)} keys"
    detail = words.get(status.phase, keys)
    return [*rows, ChainRow("output", len(draft.stages), "output", detail)]


def _build_reading_row(reading: StageReading, has_cost: bool) -> ChainRow:
    """Return the row of a stage that is stepped: its latest numbers, and its time."""
    # A measured cost is beside the name; two times of a stage would contradict each other.
    time = "" if has_cost else format_duration(reading.time_ns / 1e3)
    if not reading.numbers:
        return ChainRow("reading", reading.number, "changes nothing", time)
    # The warning says what the mean of such an output is.
    latest = "" if reading.warning in ("NaN", "infinite") else _format_mean(reading.numbers[-1])
    before = None if reading.before is None else _format_mean(reading.before)
    if not reading.is_changed:
        change = f"= {latest}"
    elif before is None:
        change = f"+ {latest}"
    else:
        change = f"≈ {latest}" if before == latest else f"{before} → {latest}"
    if reading.warning:
        change = change.rstrip()
        return ChainRow("reading", reading.number, change, reading.warning, badge="warning")
    return ChainRow("reading", reading.number, change, time, line=_draw_line(reading.numbers))


_MAX_ARGUMENTS = 3
"""Lines for the arguments of a stage, if there is no room for all of them."""


def _wrap_arguments(row: ChainRow, width: int, max_lines: int | None) -> list[ChainRow]:
    """Return a row, and its arguments below it if they do not fit beside the name."""
    cost = len(row.cost) + 2 if row.cost else 0
    is_whole = len(row.title) + len(row.detail) + cost + 7 <= width
    if row.kind != "stage" or not row.detail or is_whole or width < _MIN_WRAPPED:
        return [row]
    first, *others = row.detail.split()
    room = width - 5
    # A cost that would cut the name is beside the first argument, if both have room there.
    fitted = _fit_argument(first, room - cost)
    is_below = len(row.title) + cost + 5 > width and len(fitted) <= room - cost
    taken = " " * (is_below * cost)
    words = [fitted if is_below else first, *others]
    text = " ".join(_fit_argument(word, room) for word in words)
    lines = textwrap.wrap(text, room, initial_indent=taken, break_on_hyphens=False)
    lines[0] = lines[0].removeprefix(taken)
    if max_lines is not None and len(lines) > max_lines:
        lines = [*lines[: max_lines - 1], truncate(f"{lines[max_lines - 1]} …", room)]
    below = [ChainRow("arguments", row.place, line, badge=row.badge) for line in lines]
    if is_below:
        row, below[0] = replace(row, cost=""), replace(below[0], cost=row.cost)
    return [replace(row, detail=""), *below]


def _fit_argument(word: str, room: int) -> str:
    """Break an argument that is longer than a line after its name, a longer name in its middle."""
    name, sign, value = word.partition("=")
    if len(word) <= room or not sign:
        return word
    if len(name) < room:
        return f"{name}= {value}"
    return f"{truncate_middle(name, max(_MIN_NAME, room - 1 - len(value)))}={value}"


_LINE_WIDTH = 5


def _draw_line(numbers: Sequence[float]) -> str:
    """Draw the latest numbers as blocks between their minimum and maximum."""
    shown = [number for number in numbers if math.isfinite(number)][-_LINE_WIDTH:]
    low, high = min(shown, default=0.0), max(shown, default=0.0)
    # The lowest block stays visible; a constant is a line at half height.
    scale = 7 / (high - low) if high > low else 0.0
    heights = [round(1 + scale * (number - low)) if scale else 4 for number in shown]
    (line,) = draw_histogram([*heights, 8], 1, 1)
    return line[:-1].rjust(_LINE_WIDTH)


def _format_mean(number: float) -> str:
    """Format a number so that two fit into a narrow pane.

    Example:
        >>> [_format_mean(each) for each in (-0.06374, 0.0, 17.0, 99.7, 1234.5, 2.5e7)]
        ['-0.064', '0', '17', '100', '1,234', '2.5e+07']
    """
    return f"{number:,.0f}" if 99.5 <= abs(number) < 9_999.5 else f"{number:.2g}"


def _shorten_change(text: str, width: int) -> str:
    """Shorten a text; of ``before → after``, the number before goes first.

    Example:
        >>> _shorten_change("-0.095 → -0.001 at a bound", 23)
        '→ -0.001 at a bound'
    """
    return truncate(text if len(text) <= width else text[max(0, text.find("→")) :], width)


def _build_key_rows(draft: Draft, status: ChainStatus) -> list[ChainRow]:
    """Return a row for each key of the output and the action, with shape and dtype."""
    changes = () if status.overview is None else status.overview.changes
    known = [change.after for change in changes if change.after is not None]
    leaves = [leaf for leaf in known if leaf.part != "state"]
    names = [format_key(leaf.key) for leaf in leaves]
    width = min(max(map(cell_len, names), default=0), _MAX_NAME)
    names = [set_cell_size(truncate_middle(name, width), width) for name in names]
    return [
        ChainRow("key", len(draft.stages), name, f"{compact_shape(leaf)} {leaf.dtype}")
        for name, leaf in zip(names, leaves, strict=True)
    ]


def _wrap_rows(rows: Sequence[ChainRow], width: int, height: int) -> list[ChainRow]:
    """Put arguments below the names: all of them, a few lines each, or those that have room."""
    for max_lines in (None, _MAX_ARGUMENTS):
        wrapped = [_wrap_arguments(row, width, max_lines) for row in rows]
        if sum(map(len, wrapped)) <= height:
            break
    left = height - len(rows)
    shown = list[ChainRow]()
    for row, lines in zip(rows, wrapped, strict=True):
        below = len(lines) - 1
        shown += lines if below <= left else [row]
        left -= below if below <= left else 0
    return shown


_MARKS = {
    "": ("●", "on"),
    "off": ("○", "off"),
    "unknown": ("?", "off"),
    "failed": ("✕", "failed"),
    "error": ("✕", "failed"),
    "warning": ("▲", "warning"),
    "suggestion": ("△", "suggestion"),
}


_PROBLEM_WIDTH = 44


# The keys that scroll a view would scroll a long chain instead of moving the cursor.
class ChainList(ScrollView, can_focus=True, inherit_bindings=False):
    """Draws the env, the stages and the output, one row each."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {
        *(f"chain--{name}" for name in ("env", "number", "name", "detail", "key", "line", "drop")),
        *(f"chain--{name}" for name in ("on", "off", "failed", "warning", "suggestion", "problem")),
        "chain--cursor",
    }
    HELP = """## Chain

The env is at the top; its data flow down through the stages. The tabs show the row under the
cursor. A stage is marked `●` if it works, `✕` if it fails, `▲` if a rule warns, `△` if a rule
suggests an improvement, `○` if it is disabled, and `?` if its state is unknown because the env
cannot be created."""

    @dataclass
    class Dropped(Message):
        """A stage was dragged to another place."""

        place: int
        to: int

    @dataclass
    class Marked(Message):
        """The status mark of a stage was clicked."""

        place: int

    def __init__(self, workspace: Workspace) -> None:
        super().__init__(id="chain")
        self.workspace = workspace
        self.rows: list[ChainRow] = []
        self._whole_rows: list[ChainRow] = []
        self._cursor = ENV
        self._dragged: int | None = None
        self._target: int | None = None

    def on_mount(self) -> None:
        self.workspace.edited.subscribe(self, lambda _: self.rebuild())
        self.workspace.inspected.subscribe(self, lambda _: self.rebuild())
        self.workspace.selected.subscribe(self, lambda _: self.follow())
        self.workspace.stepped.subscribe(self, lambda _: self.rebuild())
        self.rebuild()

    @property
    def content_width(self) -> int:
        """Width of the longest line; problems are shown in full elsewhere."""
        width = 0
        for row in self._whole_rows:
            if row.kind == "reading":
                continue  # it comes and goes, and its time gives way
            own = len(row.title) + len(row.detail) + 9
            width = max(width, min(own, _PROBLEM_WIDTH) if row.kind == "problem" else own)
        return width

    def rebuild(self) -> None:
        """Update the rows."""
        workspace = self.workspace
        rows = build_chain_rows(
            workspace.draft, workspace.status, workspace.errors, workspace.readings, workspace.costs
        )
        width, height = self.size
        if len(rows) > height:
            rows = [row for row in rows if row.kind != "reading" or row.line or row.badge]
        if len(rows) > height:
            # Those that warn keep their lines, and the other numbers replace the arguments.
            shown = [row for row in rows if row.line]
            numbers = {row.place: row.title[max(0, row.title.find("→")) :] for row in shown}
            rows = [
                replace(row, detail="", cost=row.cost or numbers[row.place])
                if row.kind == "stage" and row.place in numbers
                else row
                for row in rows
                if row.kind != "reading" or row.badge
            ]
        keys = _build_key_rows(workspace.draft, workspace.status)
        if len(rows) + len(keys) <= height:
            rows += keys
        self._whole_rows = rows
        if any(cell_len(key.title) + len(key.detail) + 7 > width for key in keys):
            # All dtypes are left out if one has no room, so that the rows can be compared.
            rows = [
                replace(row, detail=row.detail.partition(" ")[0]) if row.kind == "key" else row
                for row in rows
            ]
        rows = _wrap_rows(rows, width, height)
        if rows != self.rows:
            self.rows = rows
            self._measure()
            self.refresh()
            self.follow()

    def follow(self) -> None:
        """Redraw the cursor and scroll to it."""
        before, self._cursor = self._cursor, self.workspace.place
        for n, row in enumerate(self.rows):
            if row.place in (before, self._cursor):
                self.refresh_line(n)
        at = next((n for n, row in enumerate(self.rows) if row.place == self._cursor), 0)
        top, height = int(self.scroll_offset.y), self.size.height
        if height and not top <= at < top + height:
            self.scroll_to(y=at - (0 if at < top else height - 1), animate=False)

    def on_resize(self) -> None:
        self.rebuild()
        self._measure()
        self.follow()

    def _measure(self) -> None:
        size = Size(self.size.width, len(self.rows))
        if size != self.virtual_size:
            self.virtual_size = size

    def render_line(self, y: int) -> Strip:
        at, width = y + int(self.scroll_offset.y), self.scrollable_size.width
        if at >= len(self.rows):
            return Strip.blank(width, self.rich_style)
        row = self.rows[at]
        segments = self._segments(row, width)
        style = self.rich_style
        if row.place == self.workspace.place and row.kind != "key":
            cursor = self.get_component_rich_style("chain--cursor")
            style += Style(bgcolor=cursor.bgcolor, reverse=cursor.reverse)
        if self._target is not None and row.place == self._target and row.kind == "stage":
            style += Style(bgcolor=self.get_component_rich_style("chain--drop").bgcolor)
        strip = Strip(segments).adjust_cell_length(width)
        return Strip(Segment.apply_style(strip, style)).apply_style(Style())

    def _segments(self, row: ChainRow, width: int) -> list[Segment]:
        if row.kind == "problem":
            lead = "│    " if row.place >= 0 else "│ "
            text = truncate(row.title, width - len(lead))
            return [self._styled_segment(lead, "line"), self._styled_segment(text, "problem")]
        if row.kind == "arguments":
            style = "off" if row.badge == "off" else "detail"
            return [
                self._styled_segment("│    ", "line"),
                self._styled_segment(row.title, style),
                self._styled_segment(row.cost.rjust(width - 6 - len(row.title)), "line"),
            ]
        if row.kind == "reading":
            rule, room = self._styled_segment("│    ", "line"), width - 6
            if row.badge:
                text = _shorten_change(f"{row.title} {row.detail}", room)
                return [rule, self._styled_segment(text, "warning")]
            change = _shorten_change(row.title, room - len(row.line) - 1)
            text = f"{row.line} {change}".lstrip()
            left = room - len(text)
            time = row.detail.rjust(left) if len(row.detail) < left else ""
            return [rule, self._styled_segment(text, "key"), self._styled_segment(time, "line")]
        if row.kind == "stage":
            sign, kind = _MARKS[row.badge]
            number = f"{row.place:>2} "
            cost = f" {row.cost}" if row.cost else ""
            title = truncate(row.title, width - 6 - len(cost) if cost else width - 5)
            left = width - 2 - len(number) - len(title) - 2 - len(cost) - bool(cost)
            detail = f"  {_shorten_change(row.detail, left)}" if left > 4 and row.detail else ""
            is_off = row.badge == "off"
            name = "off" if is_off else "problem" if kind == "failed" else "name"
            return [
                self._styled_segment(f"{sign} ", kind),
                self._styled_segment(number, "number"),
                self._styled_segment(title, name),
                self._styled_segment(detail, "off" if is_off else "detail"),
                self._styled_segment(cost.rjust(width - 6 - len(title) - len(detail)), "line"),
            ]
        if row.kind == "key":
            # Without room for both, the shape comes before alignment and the name.
            title, detail = row.title, row.detail
            if cell_len(title) + len(detail) + 7 > width:
                room = max(_MIN_NAME, width - len(detail) - 7)
                title = truncate_middle(title.rstrip(), room)
            return [
                self._styled_segment(f"     {title}", "key"),
                self._styled_segment(f"  {detail}", "line"),
            ]
        mark, detail = ("◆ " if row.kind == "env" else "◇ "), f"{row.detail} {row.cost}".strip()
        if len(detail) > min(width // 2, width - len(row.title) - 4):
            detail = row.cost or truncate(detail, width // 2)
        kind = "failed" if row.badge in ("failed", "error") else "env"
        # The end of a path or a function tells more than its folder.
        shorten = truncate_middle if {*"/:"} & {*row.title} else truncate
        title = shorten(row.title, width - len(detail) - 4)
        gap = " " * max(1, width - len(title) - len(detail) - 3)
        return [
            *(self._styled_segment(mark, kind), self._styled_segment(title, kind)),
            *(self._styled_segment(gap, "detail"), self._styled_segment(f"{detail} ", "detail")),
        ]

    def _styled_segment(self, text: str, kind: str) -> Segment:
        style = self.get_component_rich_style(f"chain--{kind}")
        return Segment(
            text,
            Style(
                color=style.color,
                bold=style.bold,
                dim=style.dim,
                italic=style.italic,
                strike=style.strike,
            ),
        )

    def _row_at(self, y: int) -> ChainRow | None:
        at = y + int(self.scroll_offset.y)
        return self.rows[at] if 0 <= at < len(self.rows) else None

    def on_mouse_down(self, event: events.MouseDown) -> None:
        row = self._row_at(event.y)
        if row is None:
            return
        self.workspace.select(row.place)
        if row.kind == "stage" and event.x < 2:
            self.post_message(self.Marked(row.place))
        elif row.kind == "stage":
            self._dragged = row.place
            self.capture_mouse()

    def on_mouse_move(self, event: events.MouseMove) -> None:
        if self._dragged is None:
            return
        row = self._row_at(max(0, min(event.y, self.size.height - 1)))
        last = len(self.workspace.draft.stages) - 1
        target = None if row is None else max(0, min(row.place, last))
        if target != self._target:
            self._target = target if target != self._dragged else None
            self.refresh()

    def on_mouse_up(self, event: events.MouseUp) -> None:
        if self._dragged is None:
            return
        self.release_mouse()
        place, to = self._dragged, self._target
        self._dragged = self._target = None
        self.refresh()
        if to is not None:
            self.post_message(self.Dropped(place, to))

    def on_click(self, event: events.Click) -> None:
        if event.chain == 2 and event.x >= 2:
            self.post_message(ChainPane.Edit())


_EDITS = frozenset({"switch", "remove", "duplicate", "move"})
"""Actions that change a stage."""
_MOVE = Binding.Group("move", compact=True)
_CURSOR = Binding.Group("select", compact=True)
_PAGE = Binding.Group("select a page away", compact=True)
_END = Binding.Group("env, output", compact=True)


class ChainPane(Vertical):
    """The middle pane."""

    BINDINGS = [
        Binding("up", "step(-1)", id="chain.up", show=False, group=_CURSOR),
        Binding("down", "step(1)", id="chain.down", show=False, group=_CURSOR),
        Binding("pageup", "page(-1)", id="chain.page_up", show=False, group=_PAGE),
        Binding("pagedown", "page(1)", id="chain.page_down", show=False, group=_PAGE),
        Binding("home", "first", id="chain.first", show=False, group=_END),
        Binding("end", "last", id="chain.last", show=False, group=_END),
        Binding("enter", "edit", "edit", id="chain.edit"),
        Binding("space", "switch", "on/off", id="chain.switch"),
        Binding("d,delete", "remove", "remove", id="chain.remove"),
        Binding("c", "duplicate", "duplicate", id="chain.duplicate", show=False),
        Binding("shift+up,K", "move(-1)", "move up", True, "⇧↑", id="chain.move_up", group=_MOVE),
        Binding(
            "shift+down,J", "move(1)", "move down", True, "⇧↓", id="chain.move_down", group=_MOVE
        ),
        Binding("x", "fix", "fix", id="chain.fix"),
    ]

    class Edit(Message):
        """The form of the selected stage should open."""

    class Fix(Message):
        """The fix for the selected stage should be applied."""

    def __init__(self, workspace: Workspace) -> None:
        super().__init__(id="chain-pane", classes="pane")
        self.workspace = workspace
        self._has_fix = False
        self._inapplicable = frozenset[str]()
        self.border_title = "Chain"

    def compose(self) -> ComposeResult:
        yield ChainList(self.workspace)

    def on_mount(self) -> None:
        self.workspace.edited.subscribe(self, lambda _: self._update_subtitle())
        self.workspace.inspected.subscribe(self, lambda _: self._update_keys())
        self.workspace.inspected.subscribe(self, lambda _: self._update_subtitle())
        self.workspace.selected.subscribe(self, lambda _: self._update_keys())

    def on_resize(self) -> None:
        self._update_subtitle()

    def _update_subtitle(self) -> None:
        draft = self.workspace.draft
        total, on_ = len(draft.stages), len(draft.positions)
        stack = self.workspace.stack
        count = f"{on_} of {total} on" if on_ < total else count_text(total, "stage")
        if stack is not None:
            text = f"{count} · {stack.kind}"
            count = text if len(text) <= self.size.width - 4 else f"{total} · {stack.kind}"
        elif self.workspace.is_unread:
            count = ""
        self.border_subtitle = count

    def action_step(self, by: int) -> None:
        self.workspace.select(self.workspace.place + by)

    def action_page(self, by: int) -> None:
        """Move the cursor by the height of the pane."""
        self.action_step(by * max(1, self.query_one(ChainList).size.height - 1))

    def action_first(self) -> None:
        self.workspace.select(ENV)

    def action_last(self) -> None:
        self.workspace.select(len(self.workspace.draft.stages))

    def action_edit(self) -> None:
        self.post_message(self.Edit())

    def action_fix(self) -> None:
        self.post_message(self.Fix())

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Show the key for a fix only if there is one."""
        return action != "fix" or self._has_fix

    def is_applicable(self, action: str) -> bool:
        """Return False for edits of what the code of another library creates.

        See :class:`~tdx.tui.screens.bars.LimitsKeys`: the key still works, and says why it refuses.
        """
        return action not in self._inapplicable

    def _update_keys(self) -> None:
        """Update the key bar if other keys apply."""
        has_fix = self.workspace.find_fixable() is not None
        stage, inapplicable = self.workspace.stage, frozenset[str]()
        if stage is not None and stage.wrapper is not None:
            inapplicable = _EDITS | {"edit"}
        elif stage is None and self.workspace.stack is not None:
            inapplicable = _EDITS
        if (has_fix, inapplicable) != (self._has_fix, self._inapplicable):
            self._has_fix, self._inapplicable = has_fix, inapplicable
            self.refresh_bindings()

    def action_switch(self, place: int | None = None) -> None:
        place = self.workspace.place if place is None else place
        stages = self.workspace.draft.stages
        if 0 <= place < len(stages):
            verb = "disable" if stages[place].enabled else "enable"
            label = f"{verb} {stages[place].config.name}"
            self.workspace.edit(label, self.workspace.draft.toggle(place))

    def action_remove(self) -> None:
        stage, place = self.workspace.stage, self.workspace.place
        if stage is not None:
            draft = self.workspace.draft.remove(place)
            self.workspace.edit(f"remove {stage.config.name}", draft, place=place)

    def action_duplicate(self) -> None:
        stage, place = self.workspace.stage, self.workspace.place
        if stage is not None:
            draft = self.workspace.draft.duplicate(place)
            self.workspace.edit(f"duplicate {stage.config.name}", draft, place=place + 1)

    def action_move(self, by: int) -> None:
        self._move(self.workspace.place, self.workspace.place + by)

    @on(ChainList.Dropped)
    def _move_dropped_stage(self, event: ChainList.Dropped) -> None:
        event.stop()
        self._move(event.place, event.to)

    @on(ChainList.Marked)
    def _toggle_marked_stage(self, event: ChainList.Marked) -> None:
        event.stop()
        self.action_switch(event.place)

    def _move(self, place: int, to: int) -> None:
        stages = self.workspace.draft.stages
        if 0 <= place < len(stages) and 0 <= to < len(stages):
            label = f"move {stages[place].config.name}"
            self.workspace.edit(label, self.workspace.draft.move(place, to), place=to)

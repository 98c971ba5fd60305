"""Pane in which the action is set by hand, with a slider or a choice per number."""

from __future__ import annotations

from collections.abc import Sequence

from textual import events
from textual.binding import Binding
from textual.message import Message

from tdx.inspection.live.actions import ActionField
from tdx.tui.chain_status import truncate
from tdx.tui.line_widgets import LineList, TextLine

_BINDINGS = (
    Binding("up", "walk(-1)", "previous field", id="manual.up", show=False),
    Binding("down", "walk(1)", "next field", id="manual.down", show=False),
    Binding("left", "push(-1)", "less", id="manual.less"),
    Binding("right", "push(1)", "more", id="manual.more"),
    Binding("shift+left", "push(-5)", "much less", id="manual.much_less", show=False),
    Binding("shift+right", "push(5)", "much more", id="manual.much_more", show=False),
    Binding("home", "least", "minimum", id="manual.least", show=False),
    Binding("end", "most", "maximum", id="manual.most", show=False),
    Binding("backspace", "start", "reset", id="manual.start", show=False),
)
_NUMBER_WIDTH = 8
_SLIDER_STEPS = 20
_MAX_NAME_WIDTH = 18
_CHOICE_WIDTH = 4


class ManualActionPane(LineList):
    """Holds the manual action and posts a message when it changes."""

    HELP = """## Manual action

The action of each following step. `↑` and `↓` select a number, `←` and `→` change it (with Shift:
faster), `Home` and `End` set the limits, and `Backspace` resets it. Sliders can be dragged."""
    BINDINGS = [*_BINDINGS]

    class Changed(Message):
        """The action has changed."""

    def __init__(self) -> None:
        super().__init__(id="live-manual")
        self.border_title = "manual action"
        self.fields: tuple[ActionField, ...] = ()
        self.numbers: list[float] = []
        self._target = ""
        self._dragging = False

    def set_fields(self, fields: Sequence[ActionField]) -> None:
        """Set the numbers that can be changed; keep the values of the same ones."""
        if tuple(fields) != self.fields:
            self.fields = tuple(fields)
            self.numbers = [field.start for field in fields]
        self._fill()

    def set_target(self, row: int | None, count: int) -> None:
        """Show which env takes the action. ``None``: all of them."""
        target = f"for all {count} envs" if row is None else f"for env {row}, the others random"
        target = target if count > 1 else ""
        if target != self._target:
            self._target, self.first = target, int(bool(target))
            self._fill()
            self.go_to_line(self.cursor)

    @property
    def action(self) -> tuple[tuple[str, int, float], ...]:
        """The action, by key and place."""
        pairs = zip(self.fields, self.numbers, strict=True)
        return tuple((field.key, field.place, number) for field, number in pairs)

    def on_resize(self) -> None:
        super().on_resize()
        self._fill()

    def action_push(self, by: int) -> None:
        if self.fields:
            field = self.fields[self._at]
            step = 1.0 if _is_integer(field) else (field.high - field.low) / _SLIDER_STEPS
            self._set(self.numbers[self._at] + by * step)

    def action_least(self) -> None:
        if self.fields:
            self._set(self.fields[self._at].low)

    def action_most(self) -> None:
        if self.fields:
            self._set(self.fields[self._at].high)

    def action_start(self) -> None:
        if self.fields:
            self._set(self.fields[self._at].start)

    def on_mouse_down(self, event: events.MouseDown) -> None:
        inside = event.get_content_offset(self)
        if inside is None:
            return
        at = inside.y + int(self.scroll_offset.y)
        if self.first <= at < self.first + len(self.fields):
            self.go_to_line(at)
            self._dragging = True
            self.capture_mouse()
            self._drag(inside.x)

    def on_mouse_move(self, event: events.MouseMove) -> None:
        if self._dragging:
            self._drag(event.x)

    def on_mouse_up(self) -> None:
        self._dragging = False
        self.release_mouse()

    def _drag(self, x: int) -> None:
        field = self.fields[self._at]
        begin, width = self._track()
        at: float = (x - begin) // _CHOICE_WIDTH
        if not _is_listed(field):
            share = max(0.0, min(1.0, (x - begin) / max(1, width - 1)))
            at = field.low + share * (field.high - field.low)
        self._set(at)

    def _set(self, number: float) -> None:
        field = self.fields[self._at]
        number = max(field.low, min(number, field.high))
        number = round(number) if _is_integer(field) else number
        if number != self.numbers[self._at]:
            self.numbers[self._at] = number
            self._fill()
            self.post_message(self.Changed())

    @property
    def _at(self) -> int:
        """Index of the field under the cursor."""
        return max(0, min(self.cursor - self.first, len(self.fields) - 1))

    def _track(self) -> tuple[int, int]:
        """Return start and width of the sliders."""
        name = min(_MAX_NAME_WIDTH, max((len(field.name) for field in self.fields), default=0))
        return name + 2, max(4, self.size.width - name - _NUMBER_WIDTH - 4)

    def _fill(self) -> None:
        if not self.fields:
            self.show([((" this action cannot be set by hand", "muted"),)])
            return
        pairs = zip(self.fields, self.numbers, strict=True)
        heading: list[TextLine] = [((f" {self._target}", "muted"),)] if self._target else []
        self.show([*heading, *(self._line(field, number) for field, number in pairs)])

    def _line(self, field: ActionField, number: float) -> TextLine:
        begin, width = self._track()
        name = (f"{truncate(field.name, begin - 2):<{begin}}", "bold")
        if _is_listed(field):
            choices = [
                (f"[{n}]".center(_CHOICE_WIDTH), "accent")
                if n == number
                else (str(n).center(_CHOICE_WIDTH), "muted")
                for n in range(int(field.high) + 1)
            ]
            return (name, *choices)
        share = (number - field.low) / (field.high - field.low) if field.high > field.low else 0.0
        at = round(share * (width - 1))
        return (
            name,
            ("━" * at, "primary"),
            ("●", "accent"),
            ("─" * (width - 1 - at), "muted"),
            (f"{number:>{_NUMBER_WIDTH}.3g}", "plain"),
        )


def _is_integer(field: ActionField) -> bool:
    return field.kind == "choice"


def _is_listed(field: ActionField) -> bool:
    """Return True if all choices fit side by side."""
    return field.kind == "choice" and field.high <= 9

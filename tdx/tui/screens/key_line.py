"""The line at the bottom: what the keys do here, in groups, as far as there is room."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby

from textual import events
from textual.binding import Binding
from textual.content import Content
from textual.screen import Screen
from textual.widgets import Static

_LAST = ("app.palette", "app.help")
"""What is shown at the end whatever else has to go."""
_BETWEEN = "  "
_RULE = " │ "


@dataclass(frozen=True, slots=True)
class Part:
    """What is said of a key, or of some that belong together.

    Args:
        area: where it belongs to, as the first half of its id.
        keys: each key as it is shown, with the one to be pressed.
        text: what it does.
    """

    area: str
    keys: tuple[tuple[str, str], ...]
    text: str

    @property
    def shown(self) -> str:
        """The keys as they are written."""
        return "".join(shown for shown, _ in self.keys)

    @property
    def width(self) -> int:
        """Of the whole."""
        return Content(f"{self.shown} {self.text}").cell_length


class KeyLine(Static):
    """Follows the focus; a click on a key presses it."""

    def __init__(self) -> None:
        super().__init__(id="keys")
        self._spots: list[tuple[int, int, str]] = []

    def on_mount(self) -> None:
        self.screen.bindings_updated_signal.subscribe(self, self._changed)

    def _changed(self, screen: Screen[object]) -> None:
        if self.is_attached and screen is self.screen:
            self.refresh()

    def on_click(self, event: events.Click) -> None:
        for start, end, key in self._spots:
            if start <= event.x < end:
                self.app.simulate_key(key)

    def render(self) -> Content:
        parts = self._parts()
        right = [part for part in parts if part.area == "app"]
        left = [part for part in parts if part.area != "app"]
        end = sum(part.width for part in right) + len(_BETWEEN) * len(right)
        line = _Line()
        for index, part in enumerate(left):
            apart = _RULE if index and left[index - 1].area != part.area else _BETWEEN
            if line.width + len(apart) + part.width + end > self.size.width - 1:
                break
            line.add(apart if index else " ", part)
        gap = max(1, self.size.width - 1 - line.width - end + len(_BETWEEN))
        for index, part in enumerate(right):
            line.add(_BETWEEN if index else " " * gap, part)
        self._spots = line.spots
        return Content.assemble(*line.texts)

    def _parts(self) -> list[Part]:
        active = self.screen.active_bindings.values()
        shown = [each.binding for each in active if each.enabled and each.binding.show]
        ranked = sorted(shown, key=lambda binding: binding.id in _LAST)
        return list(self._grouped(ranked))

    def _grouped(self, bindings: list[Binding]) -> Iterator[Part]:
        def together(binding: Binding) -> object:
            return binding.action if binding.group is None else binding.group

        for _, found in groupby(bindings, together):
            several = {binding.action: binding for binding in reversed(list(found))}
            ordered = list(reversed(several.values()))
            first = ordered[0]
            keys = tuple((self.app.get_key_display(each), each.key) for each in ordered)
            text = first.description if first.group is None else first.group.description
            area = "app" if first.id in _LAST else (first.id or "").partition(".")[0]
            yield Part(area, keys, text)


class _Line:
    """What stands on the line so far."""

    def __init__(self) -> None:
        self.width = 0
        self.texts: list[tuple[str, str]] = []
        self.spots: list[tuple[int, int, str]] = []

    def add(self, apart: str, part: Part) -> None:
        """Put a part behind what is there; its text belongs to its last key."""
        self._put(apart, "dim")
        for shown, key in part.keys:
            start = self.width
            self._put(shown, "bold $footer-key-foreground")
            self.spots.append((start, self.width, key))
        start = self.width
        self._put(f" {part.text}", "$footer-description-foreground")
        self.spots.append((start, self.width, part.keys[-1][1]))

    def _put(self, text: str, style: str) -> None:
        self.texts.append((text, style))
        self.width += Content(text).cell_length

"""The keys of the live tab, each with the id that a keymap names."""

from __future__ import annotations

from textual.binding import Binding

_SCRUB = Binding.Group("scrub", compact=True)
_EPISODE = Binding.Group("episode", compact=True)
_RATE = Binding.Group("rate", compact=True)

LIVE = (
    Binding("space", "run", "run/pause", id="live.run"),
    Binding("s", "step", "step", id="live.step"),
    Binding("n", "steps", "n steps", id="live.steps"),
    Binding("r", "reset", "reset", id="live.reset"),
    Binding("w", "until", "run until", id="live.until"),
    Binding("i", "source", "action", id="live.action"),
    Binding("minus", "rate(-1)", "slower", id="live.slower", group=_RATE, key_display="-"),
    Binding("plus,equals_sign", "rate(1)", "faster", id="live.faster", group=_RATE),
    Binding("left", "scrub(-1)", "back", id="live.back", group=_SCRUB),
    Binding("right", "scrub(1)", "on", id="live.on", group=_SCRUB),
    Binding("shift+left", "scrub(-10)", "10 back", id="live.back10", show=False),
    Binding("shift+right", "scrub(10)", "10 on", id="live.on10", show=False),
    Binding("home", "first", "oldest trace", id="live.first", show=False),
    Binding("end,f", "follow", "follow the latest", id="live.follow", show=False),
    Binding(
        *("left_square_bracket", "episode(-1)", "episode before"),
        id="live.episode_before",
        group=_EPISODE,
        key_display="[",
    ),
    Binding(
        *("right_square_bracket", "episode(1)", "episode after"),
        id="live.episode_after",
        group=_EPISODE,
        key_display="]",
    ),
    Binding("exclamation_mark", "trouble", "next trouble", id="live.trouble", show=False),
    Binding("m", "mark", "mark to compare", id="live.mark", show=False),
    Binding("d", "difference", "differences", id="live.difference", show=False),
    Binding("o", "only_written", "only what is written", id="live.only_written", show=False),
    Binding("c", "chart", "chart a key", id="live.chart", show=False),
    Binding("b", "window", "zoom the charts", id="live.window", show=False),
    Binding("D", "keep", "dump these steps", id="live.keep", show=False),
    Binding("v", "view", "next pane", id="live.view"),
    Binding("comma", "env(-1)", "env before", id="live.env_before", show=False, key_display=","),
    Binding("full_stop", "env(1)", "env after", id="live.env_after", show=False, key_display="."),
    Binding("ctrl+k", "end", "end the worker", id="live.end", show=False),
)
VALUES = (
    Binding("up", "walk(-1)", "up", id="values.up", show=False),
    Binding("down", "walk(1)", "down", id="values.down", show=False),
    Binding("pageup", "walk(-10)", "page up", id="values.page_up", show=False),
    Binding("pagedown", "walk(10)", "page down", id="values.page_down", show=False),
    Binding("enter", "open", "open", id="values.open", show=False),
)
HAND = (
    Binding("up", "walk(-1)", "field before", id="hand.up", show=False),
    Binding("down", "walk(1)", "field after", id="hand.down", show=False),
    Binding("left", "push(-1)", "less", id="hand.less"),
    Binding("right", "push(1)", "more", id="hand.more"),
    Binding("shift+left", "push(-5)", "much less", id="hand.much_less", show=False),
    Binding("shift+right", "push(5)", "much more", id="hand.much_more", show=False),
    Binding("home", "least", "least", id="hand.least", show=False),
    Binding("end", "most", "most", id="hand.most", show=False),
    Binding("backspace", "start", "as at first", id="hand.start", show=False),
)

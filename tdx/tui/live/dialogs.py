"""Dialogs of the Live tab: number of steps, stop condition, action source, plot and dump folder."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tdx.tui.screens.dialogs import Choice, ChoiceScreen

if TYPE_CHECKING:
    from textual.app import App


_STEP_COUNTS = (1, 10, 50, 100, 200, 500, 1000, 5000)
_STOP_CONDITIONS = (
    ("done", "an episode ends"),
    ("truncated", "an episode is truncated"),
    ("terminated", "an episode terminates"),
    ("nan", "a value is nan or infinite"),
    ("spec", "a value violates its spec"),
    ("nan or spec", "either; combine conditions with and, or and parentheses"),
)
_SOURCES = (
    ("random", "from the action spec"),
    ("zero", "an action of zeros"),
    ("manual", "set by hand, with sliders"),
)
_SEQUENCE_SUFFIXES = (".npy", ".json")


def ask_steps(app: App[Any], then: Callable[[int], None]) -> None:
    """Ask how many steps to make."""

    def chosen(text: str | None) -> None:
        if text is None:
            return
        plain = text.replace(",", "").replace("_", "")
        if plain.isdecimal() and int(plain) > 0:
            then(int(plain))
        else:
            app.notify(f"{text!r} is not a number of steps", severity="warning")

    choices = [Choice(str(count), str(count)) for count in _STEP_COUNTS]
    title = "Number of steps: choose one or type a number"
    app.push_screen(
        ChoiceScreen(title, choices, allow_custom=True, is_verbatim=str.isdecimal), chosen
    )


def ask_stop_condition(app: App[Any], now: str | None, then: Callable[[str | None], None]) -> None:
    """Ask when to stop; ``None`` is for never."""
    choices = [Choice(name, name, note) for name, note in _STOP_CONDITIONS]
    if now is not None:
        known = [each for each in choices if each.id != now]
        choices = [
            Choice("", "no condition", "run until paused"),
            Choice(now, now, "current"),
            *known,
        ]

    def chosen(text: str | None) -> None:
        if text is not None:
            then(text or None)

    title = "Run until: choose one or type reward > 0.5 and step_count >= 10"
    screen = ChoiceScreen(title, choices, allow_custom=True, is_verbatim=_is_comparison)
    app.push_screen(screen, chosen)


def _is_comparison(text: str) -> bool:
    """Whether it is a condition on a key, and not the beginning of a choice."""
    return any(sign in text for sign in "<>=!")


def ask_action_source(app: App[Any], now: str, then: Callable[[str], None]) -> None:
    """Ask where actions come from."""
    choices = [Choice(name, name, note) for name, note in _SOURCES]
    if now not in [each.id for each in choices]:
        choices.append(Choice(now, now, "current"))

    def chosen(text: str | None) -> None:
        if text is not None:
            then(_parse_source(text, [each.id for each in choices]))

    title = "Action source: choose one or type sequence:FILE, module:FILE"
    app.push_screen(ChoiceScreen(title, choices, allow_custom=True), chosen)


def _parse_source(text: str, known: Sequence[str]) -> str:
    """What is typed; a file alone is taken for what its name says."""
    if text in known or ":" in text:
        return text
    path = Path(text).expanduser()
    if path.is_dir() or path.suffix in _SEQUENCE_SUFFIXES:
        return f"sequence:{path}"
    return f"module:{path}" if path.suffix else text


def ask_dump_folder(app: App[Any], env: str, then: Callable[[str], None]) -> None:
    """Ask into which folder to dump the steps."""

    def chosen(path: str | None) -> None:
        if path is not None:
            then(str(Path(path).expanduser().absolute()))

    name = f"{env.rpartition('/')[2].partition('-v')[0].lower()}-live"
    known = [Choice(name, name, "new folder")]
    title = "Dump the steps since the reset: choose a folder or type one"
    app.push_screen(ChoiceScreen(title, known, allow_custom=True), chosen)


def ask_plot(
    app: App[Any], names: Sequence[str], shown: Sequence[str], then: Callable[[str], None]
) -> None:
    """Ask which curve to draw, or to draw no longer."""
    choices = [Choice(name, name, "plotted" if name in shown else "") for name in names]

    def chosen(text: str | None) -> None:
        if text is not None:
            then(text)

    app.push_screen(ChoiceScreen("Plot a key (again removes it)", choices), chosen)

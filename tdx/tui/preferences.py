"""What the user has set for the app; what cannot be read is left out, with a notice."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from textual.binding import Binding
from textual.keys import KEY_NAME_REPLACEMENTS, Keys
from textual.theme import Theme

from tdx.errors import TdxError, did_you_mean, find_similar_names
from tdx.settings import load_keymap, load_settings, load_themes
from tdx.tui.themes import DEFAULT
from tdx.tui.user_themes import read_themes

_MODIFIERS = {"ctrl", "shift", "alt", "super", "meta", "hyper"}
_NAMED = {key.value.rpartition("+")[2] for key in Keys} | set(KEY_NAME_REPLACEMENTS)


@dataclass(frozen=True, slots=True)
class Preferences:
    """How the app shall be.

    Args:
        theme: name of the theme.
        keymap: keys by the ids of their bindings.
        themes: themes of the user's own.
        notices: what could not be read, for the user.
    """

    theme: str = DEFAULT
    keymap: Mapping[str, str] = field(default_factory=dict)
    notices: tuple[str, ...] = ()
    themes: tuple[Theme, ...] = ()


def load_preferences() -> Preferences:
    """What is set; defaults where that cannot be read."""
    notices: list[str] = []
    theme, keymap = DEFAULT, {}
    try:
        set_theme = load_settings()["theme"]
        theme = set_theme if isinstance(set_theme, str) else DEFAULT
    except TdxError as error:
        notices.append(str(error))
    try:
        keymap = load_keymap()
    except TdxError as error:
        notices.append(str(error))
    themes: tuple[Theme, ...] = ()
    try:
        themes, wrong = read_themes(load_themes())
        notices += wrong
    except TdxError as error:
        notices.append(str(error))
    return Preferences(theme, keymap, tuple(dict.fromkeys(notices)), themes)


def checked_keymap(
    keymap: Mapping[str, str], known: Iterable[Sequence[Binding]]
) -> tuple[dict[str, str], str | None]:
    """Split a keymap into the part that can be used and one notice about the rest.

    Args:
        keymap: Keys by the ids of bindings; several keys are separated by commas.
        known: The bindings that there are, those of one widget together.

    Example:
        >>> checked_keymap({"chain.remov": "x"}, [[Binding("d", "remove", id="chain.remove")]])[1]
        "keymap: unknown command 'chain.remov' (did you mean chain.remove?)"
    """
    groups = [[each for each in group if each.id] for group in known]
    ids = list(dict.fromkeys(str(each.id) for group in groups for each in group))
    good: dict[str, str] = {}
    wrong = []
    for name, text in keymap.items():
        keys = [key.strip() for key in text.split(",")]
        unknown = [key for key in keys if not _is_key(key)]
        if name not in ids:
            hint = did_you_mean(name, find_similar_names(name, ids, 1), "see F1 for the commands")
            wrong.append(f"unknown command {name!r} ({hint})")
        elif unknown:
            wrong.append(f"unknown key {unknown[0]!r} for {name}")
        else:
            good[name] = ",".join(keys)
    for name, other, key in _clashes(good, groups):
        if good.pop(name, None) is not None:
            wrong.append(f"{key!r} for {name} is the key of {other}")
    return good, f"keymap: {'; '.join(wrong)}" if wrong else None


def _clashes(
    keymap: Mapping[str, str], groups: Iterable[Sequence[Binding]]
) -> Iterator[tuple[str, str, str]]:
    """Each command of a keymap whose key another command of the same widget has."""
    for group in groups:
        before = {str(each.id): _keys(each.key) for each in group}
        now = {name: _keys(keymap.get(name, ",".join(keys))) for name, keys in before.items()}
        for name in [name for name in keymap if name in now]:
            for other in now.keys() - {name}:
                # Some commands share a key from the start, as only one of them is enabled.
                for key in sorted((now[name] & now[other]) - (before[name] & before[other])):
                    yield name, other, key


def _keys(text: str) -> set[str]:
    return set(text.split(","))


def _is_key(text: str) -> bool:
    *modifiers, key = text.split("+")
    return set(modifiers) <= _MODIFIERS and (len(key) == 1 or key in _NAMED)

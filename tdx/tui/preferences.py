"""What the user has set for the app; what cannot be read is left out, with a notice."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from textual.keys import KEY_NAME_REPLACEMENTS, Keys
from textual.theme import Theme

from tdx.errors import TdxError, did_you_mean
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
    keymap: Mapping[str, str], known: Iterable[str]
) -> tuple[dict[str, str], list[str]]:
    """The part of a keymap that can be used, and a notice for each other entry.

    Args:
        keymap: keys by the ids of bindings; several with commas between.
        known: the ids that there are.

    Example:
        >>> checked_keymap({"chain.remov": "x"}, ["chain.remove"])[1]
        ["keymap: no command 'chain.remov' (did you mean chain.remove?)"]
    """
    ids = list(known)
    good: dict[str, str] = {}
    notices = []
    for name, keys in keymap.items():
        wrong = [key for key in keys.split(",") if not _is_key(key.strip())]
        if name not in ids:
            notices.append(f"keymap: no command {name!r} ({did_you_mean(name, ids, 'see F1')})")
        elif wrong:
            notices.append(f"keymap: {name}: there is no key {wrong[0].strip()!r}")
        else:
            good[name] = ",".join(key.strip() for key in keys.split(","))
    return good, notices


def _is_key(text: str) -> bool:
    *modifiers, key = text.split("+")
    return set(modifiers) <= _MODIFIERS and (len(key) == 1 or key in _NAMED)

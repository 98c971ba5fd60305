"""User settings of the app: theme, custom themes and keymap."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from textual.binding import Binding
from textual.color import Color, ColorParseError
from textual.keys import KEY_NAME_REPLACEMENTS, Keys
from textual.theme import Theme

from tdx.foundation.errors import ArgumentError, TdxError, did_you_mean, find_similar_names
from tdx.foundation.settings import load_keymap, load_settings, load_themes


def _theme_variables(line: str, key: str, back: str) -> dict[str, str]:
    """Return variables for unobtrusive lines and scrollbars, and visible keys."""
    bars = {f"scrollbar-background{state}": back for state in ("", "-hover", "-active")}
    return {
        **bars,
        **{"border-blurred": line, "scrollbar": line, "scrollbar-corner-color": back},
        **{"footer-key-foreground": key},
    }


DARK = Theme(
    name="tdx-dark",
    primary="#6ea8fe",
    secondary="#8b7cf6",
    accent="#f2b866",
    foreground="#d7dce5",
    background="#12151c",
    surface="#181c25",
    panel="#222836",
    success="#7fc98f",
    warning="#e6b455",
    error="#ef7480",
    dark=True,
    variables=_theme_variables(line="#323a4d", key="#f2b866", back="#12151c"),
)
LIGHT = Theme(
    name="tdx-light",
    primary="#1f5fbf",
    secondary="#6a4fc4",
    accent="#a55b00",
    foreground="#22262e",
    background="#fbfbf9",
    surface="#f3f3ef",
    panel="#e4e5df",
    success="#1f7a3d",
    warning="#8f5b00",
    error="#b3261e",
    dark=False,
    variables=_theme_variables(line="#c9cbc2", key="#1f5fbf", back="#fbfbf9"),
)
THEMES = (DARK, LIGHT)
DEFAULT_THEME = DARK.name
_COLOR_FIELDS = (
    *("primary", "secondary", "warning", "error", "success", "accent"),
    *("foreground", "background", "surface", "panel", "boost"),
)
_BOOL_FIELDS = ("dark", "ansi")
_NUMBER_FIELDS = ("luminosity_spread", "text_alpha")
_FIELDS = (*_COLOR_FIELDS, *_BOOL_FIELDS, *_NUMBER_FIELDS, "variables")


def read_themes(tables: Mapping[str, object]) -> tuple[tuple[Theme, ...], list[str]]:
    """Parse custom themes; return the valid ones and a notice for each invalid one.

    Example:
        >>> read_themes({"mine": {"primary": "#12345"}})[1]
        ["themes.mine: primary cannot be '#12345' (use a color such as #6ea8fe)"]
    """
    themes, notices = [], []
    for name, table in tables.items():
        try:
            if not isinstance(table, dict):
                raise ArgumentError("it must be a table", hint=f"write [themes.{name}]")
            if "primary" not in table:
                raise ArgumentError(
                    "the field primary is missing", hint='write primary = "#6ea8fe"'
                )
            values = {field: _parse_field(field, value) for field, value in table.items()}
            themes.append(Theme(name=name, **values))
        except ArgumentError as error:
            notices.append(f"themes.{name}: {error.message} ({error.hint})")
    return tuple(themes), notices


def _parse_field(field: str, value: object) -> Any:
    if field not in _FIELDS:
        hint = did_you_mean(field, _FIELDS, f"there are {', '.join(_FIELDS)}")
        raise ArgumentError(f"unknown field {field!r}", hint=hint)
    if field in _COLOR_FIELDS:
        return _parse_color(field, value)
    if field in _BOOL_FIELDS and not isinstance(value, bool):
        raise ArgumentError(f"{field} cannot be {value!r}", hint="use true or false")
    if field in _NUMBER_FIELDS and (isinstance(value, bool) or not isinstance(value, (int, float))):
        raise ArgumentError(f"{field} cannot be {value!r}", hint="use a number")
    if field == "variables":
        if not isinstance(value, dict):
            raise ArgumentError("variables must be a table", hint="write [themes.NAME.variables]")
        return {str(name): _parse_color(str(name), color) for name, color in value.items()}
    return value


def _parse_color(field: str, value: object) -> str:
    try:
        Color.parse(value if isinstance(value, str) else "")
    except ColorParseError:
        hint = "use a color such as #6ea8fe"
        raise ArgumentError(f"{field} cannot be {value!r}", hint=hint) from None
    return str(value)


_MODIFIERS = {"ctrl", "shift", "alt", "super", "meta", "hyper"}
_NAMED_KEYS = {key.value.rpartition("+")[2] for key in Keys} | set(KEY_NAME_REPLACEMENTS)


@dataclass(frozen=True, slots=True)
class Preferences:
    """User settings of the app."""

    theme: str = DEFAULT_THEME
    keymap: Mapping[str, str] = field(default_factory=dict)  # keys by binding id
    notices: tuple[str, ...] = ()  # problems with the settings, for the user
    themes: tuple[Theme, ...] = ()
    has_vim_keys: bool = False  # letters move the cursor as in vim, see :data:`VIM_MOVES`


VIM_MOVES = {
    **{"h": "left", "j": "down", "k": "up", "l": "right", "g": "home", "G": "end"},
    **{"ctrl+d": "pagedown", "ctrl+u": "pageup"},
}
"""Keys that stand for others with vim keys, except where text is typed."""
VIM_KEYMAP = {
    "screen.redo": "U,ctrl+y,ctrl+r",
    "file.recent": "ctrl+t",
    "screen.check": "T",
    "screen.hints": "H",
    "screen.jump": "ctrl+g",
}
"""Keys by binding id with vim keys; the keymap of the user comes first."""


def load_preferences() -> Preferences:
    """Load the settings; use defaults for what cannot be read."""
    notices: list[str] = []
    theme, keymap, has_vim_keys = DEFAULT_THEME, {}, False
    try:
        settings = load_settings()
        has_vim_keys = settings["keys"] == "vim"
        set_theme = settings["theme"]
        theme = set_theme if isinstance(set_theme, str) else DEFAULT_THEME
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
    return Preferences(theme, keymap, tuple(dict.fromkeys(notices)), themes, has_vim_keys)


def check_keymap(
    keymap: Mapping[str, str], known: Iterable[Sequence[Binding]]
) -> tuple[dict[str, str], str | None]:
    """Split a keymap into its valid part and one notice about the rest.

    It has keys, separated by commas, by binding id; the known bindings are grouped by widget.

    Example:
        >>> check_keymap({"chain.remov": "x"}, [[Binding("d", "remove", id="chain.remove")]])[1]
        "keymap: unknown command 'chain.remov' (did you mean chain.remove?)"
    """
    groups = [[binding for binding in group if binding.id] for group in known]
    ids = list(dict.fromkeys(str(binding.id) for group in groups for binding in group))
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
    for name, other, key in _find_clashes(good, groups):
        if good.pop(name, None) is not None:
            wrong.append(f"{key!r} for {name} is the key of {other}")
    return good, f"keymap: {'; '.join(wrong)}" if wrong else None


def _find_clashes(
    keymap: Mapping[str, str], groups: Iterable[Sequence[Binding]]
) -> Iterator[tuple[str, str, str]]:
    """Find commands of a keymap whose key belongs to another command of the same widget."""
    for group in groups:
        before = {str(binding.id): _split_keys(binding.key) for binding in group}
        now = {name: _split_keys(keymap.get(name, ",".join(keys))) for name, keys in before.items()}
        for name in [name for name in keymap if name in now]:
            for other in now.keys() - {name}:
                # Some commands share a default key, because only one of them is enabled at a time.
                for key in sorted((now[name] & now[other]) - (before[name] & before[other])):
                    yield name, other, key


def _split_keys(text: str) -> set[str]:
    return set(text.split(","))


def _is_key(text: str) -> bool:
    *modifiers, key = text.split("+")
    return set(modifiers) <= _MODIFIERS and (len(key) == 1 or key in _NAMED_KEYS)

"""The colours of the app; those of Textual can be chosen as well."""

from __future__ import annotations

from textual.theme import Theme


def _variables(line: str, key: str, back: str) -> dict[str, str]:
    """Quiet lines and scrollbars; keys that stand out."""
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
    variables=_variables(line="#323a4d", key="#f2b866", back="#12151c"),
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
    variables=_variables(line="#c9cbc2", key="#1f5fbf", back="#fbfbf9"),
)
THEMES = (DARK, LIGHT)
DEFAULT = DARK.name

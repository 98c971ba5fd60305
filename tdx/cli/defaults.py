"""Options that nobody gave, taken from what the user has set for all runs."""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping
from typing import Any

from tdx.errors import TdxError

OUTPUT_SETTINGS = ("format", "color")
PIPELINE_SETTINGS = ("seed", "num_envs", "device")


def default_options(names: Collection[str | None], *, tolerant: bool = False) -> dict[str, Any]:
    """The defaults that the settings give to a command's options.

    Args:
        names: the options that the command has.
        tolerant: whether settings that cannot be read are passed over.

    Raises:
        TdxError: the settings cannot be read.
    """
    wanted = [name for name in OUTPUT_SETTINGS if name in names]
    if not wanted:
        return {}
    from tdx.settings import load_settings

    try:
        settings = load_settings()
    except TdxError:
        if tolerant:
            return {}
        raise
    return {name: settings[name] for name in wanted if settings.is_set(name)}


def pipeline_settings(values: Mapping[str, Any], *, tolerant: bool = False) -> dict[str, Any]:
    """What the settings say of an env, for as far as its pipeline leaves it open.

    Args:
        values: what the pipeline says.
        tolerant: whether settings that cannot be read are passed over.

    Raises:
        TdxError: the settings cannot be read.
    """
    wanted = [name for name in PIPELINE_SETTINGS if values[name] is None]
    if not wanted:
        return {}
    from tdx.settings import load_settings

    try:
        settings = load_settings()
    except TdxError:
        if tolerant:
            return {}
        raise
    return {name: settings[name] for name in wanted if settings.is_set(name)}


def notice_of_broken_settings() -> None:
    """Say on stderr that the settings cannot be read, where help is asked for."""
    from tdx.settings import load_settings

    try:
        load_settings()
    except TdxError as error:
        place = f"{error.where}: " if str(error.where) else ""
        print(f"notice: {place}{error.message}; the defaults are used", file=sys.stderr)

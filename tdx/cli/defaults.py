"""Defaults of options that the user configured: ``format``, ``color``, ``seed`` and others."""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from tdx.errors import TdxError

OUTPUT_SETTINGS = ("format", "color")
PIPELINE_SETTINGS = ("seed", "num_envs", "device")


def output_defaults(
    parameters: Collection[str | None], *, tolerant: bool = False
) -> dict[str, Any]:
    """Return the configured defaults of a command's output options.

    Args:
        parameters: Names of the parameters of the command.
        tolerant: If True, ignore settings that cannot be read.

    Raises:
        TdxError: The settings cannot be read.
    """
    names = [name for name in OUTPUT_SETTINGS if name in parameters]
    return _configured(names, tolerant=tolerant)


def pipeline_defaults(values: Mapping[str, Any], *, tolerant: bool = False) -> dict[str, Any]:
    """Return the configured values of env settings that a pipeline leaves open.

    Args:
        values: Settings of the pipeline's env; ``None`` where it leaves one open.
        tolerant: If True, ignore settings that cannot be read.

    Raises:
        TdxError: The settings cannot be read.
    """
    names = [name for name in PIPELINE_SETTINGS if values[name] is None]
    return _configured(names, tolerant=tolerant)


def _configured(names: Sequence[str], *, tolerant: bool) -> dict[str, Any]:
    if not names:
        return {}
    from tdx.settings import load_settings

    try:
        settings = load_settings()
    except TdxError:
        if tolerant:
            return {}
        raise
    return {name: settings[name] for name in names if settings.is_set(name)}


def configured_text(name: str) -> str | None:
    """Return a configured default, or ``None`` if it is not set or the settings are broken."""
    from tdx.settings import load_settings

    try:
        value = load_settings()[name]
    except TdxError:
        return None
    return value if isinstance(value, str) else None


def warn_of_broken_settings() -> None:
    """Print a notice to stderr if the settings cannot be read."""
    from tdx.settings import load_settings

    try:
        load_settings()
    except TdxError as error:
        place = f"{error.where}: " if str(error.where) else ""
        print(f"notice: {place}{error.message}; using the defaults", file=sys.stderr)

"""Arguments from a file that name other files, modules or addresses.

An env may open, import or fetch what its arguments name, and tdx cannot know which of them it does:
a text that looks like such a reference needs ``--allow-code`` if it comes from a file. Transforms
declare which arguments are paths.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePath
from typing import TYPE_CHECKING

from tdx.foundation.errors import CodeNotAllowedError, TdxError
from tdx.foundation.untrusted import ALLOW_DOWNLOAD
from tdx.pipeline.grammar import shorten
from tdx.pipeline.values import Call, CodeReference, FileArguments, Value

if TYPE_CHECKING:
    from tdx.pipeline.arguments import BoundStage

_REFERENCE = re.compile(r"[/\\:~]|\.[\w.]")
"""A path, an address, ``module:name``, ``module.name``, a file with an extension, ``..``."""
_ORDINARY = re.compile(r"v?\d+(\.\d+)*|(cpu|cuda|mps|xpu):\d+")
"""Versions and devices. Numbers are recognized by ``float``."""
_NAMES_A_FILE = re.compile(
    r"(?:^|_)(?:file|filename|path|dir|directory|folder|url|uri|module|script|checkpoint)s?$"
)
"""Names of arguments whose value is a reference, whatever it looks like: ``xml_file: ant``."""
_HINT = "add --allow-code if you trust it"


def is_reference(text: str) -> bool:
    """Return True if a text may name a file, a module or an address.

    Example:
        >>> [is_reference(text) for text in ("/etc/passwd", "this.Zen", "a:b", "ant.xml")]
        [True, True, True, True]
        >>> any(map(is_reference, ("rgb_array", "4x4", "v5", "0.5", "v1.2", "cuda:0", "Go. Stop.")))
        False
    """
    if _ORDINARY.fullmatch(text) or not _REFERENCE.search(text):
        return False
    try:
        float(text)
    except ValueError:
        return True
    return False


def find_env_references(arguments: Mapping[str, Value]) -> Iterator[TdxError]:
    """Yield an error for the first reference in each argument that an env gets from a file.

    The ``arguments`` that a user typed have no references.
    """
    if not isinstance(arguments, FileArguments):
        return
    for name, value in arguments.items():
        for place, text in _iterate_texts(value, (name,)):
            key = next((part for part in reversed(place) if not part.isdecimal()), name)
            if is_reference(text) or _NAMES_A_FILE.search(key.lower()):
                shown = shorten(text)
                yield CodeNotAllowedError(
                    f"env.kwargs {'.'.join(place)} is {shown!r}, which may name a file, a module "
                    "or an address, and references in a file are not allowed",
                    hint=_HINT,
                )
                break


def has_references(arguments: Mapping[str, Value]) -> bool:
    """Return True if arguments of an env will need ``--allow-code`` once they are in a file."""
    return any(True for _ in find_env_references(FileArguments(arguments)))


def _iterate_texts(value: object, place: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield each text inside a value with its place: keys and indices."""
    if isinstance(value, str):
        yield place, value
    elif isinstance(value, CodeReference):
        yield place, str(value)
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            if isinstance(key, str) and is_reference(key):
                yield place, key
            yield from _iterate_texts(inner, (*place, str(key)))
    elif isinstance(value, Call):
        yield from _iterate_texts([*value.args, value.kwargs], place)
    elif isinstance(value, (list, tuple)):
        for index, inner in enumerate(value):
            yield from _iterate_texts(inner, (*place, str(index)))


def find_stage_references(bound: BoundStage) -> Iterator[TdxError]:
    """Yield errors for paths outside the current folder, and for downloads."""
    if bound.info is None:
        return
    for parameter in bound.info.parameters:
        value = bound.given.get(parameter.name)
        is_path = any("Path" in option.text for option in parameter.type.options)
        if is_path and isinstance(value, str) and not _is_inside(value):
            yield CodeNotAllowedError(
                f"{parameter.name} is {value!r}, which is outside the current folder",
                hint="use a path below the current folder, or add --allow-code if you trust it",
            )
        if parameter.name == "download" and value and os.environ.get(ALLOW_DOWNLOAD) != "1":
            yield CodeNotAllowedError(
                f"{bound.stage.name} downloads its weights, and downloads are not allowed",
                hint="add --allow-download",
            )


def _is_inside(name: str) -> bool:
    """Return True if a relative path, with the links in it, stays below the current folder."""
    path = PurePath(name)
    if path.is_absolute() or ".." in path.parts or name.startswith("~") or "\0" in name:
        return False
    folder = Path.cwd().resolve()
    try:
        return (folder / path).resolve().is_relative_to(folder)
    except (OSError, RuntimeError):  # a loop of links
        return False

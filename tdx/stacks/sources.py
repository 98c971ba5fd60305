"""Where a stage comes from: the location of its class and the arguments of its constructor."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from tdx.foundation.patches import instance_dict

_SKIPPED = ("self", "env", "venv", "env_fns")


def class_location(kind: type) -> str | None:
    """Return ``file:line`` of a class, relative to the current folder; ``None`` without source."""
    if kind not in _sources:
        # Parsing the source of the module takes milliseconds.
        try:
            file = inspect.getsourcefile(kind)
            _, line = inspect.findsource(kind)
        except (TypeError, OSError):
            file, line = None, 0
        _sources[kind] = None if file is None else (Path(file), line + 1)
    source = _sources[kind]
    if source is None:
        return None
    path, line = source
    if path.is_relative_to(Path.cwd()):
        path = path.relative_to(Path.cwd())
    return f"{path.as_posix()}:{line}"


_sources: WeakKeyDictionary[type, tuple[Path, int] | None] = WeakKeyDictionary()


def constructor_arguments(
    owner: object,
    recorded: Mapping[str, object] | None,
    further: Mapping[str, object] | None = None,
) -> dict[str, object]:
    """Return the arguments that a stage was created with, as far as they are known.

    If the library recorded none, they are the attributes that are named like the parameters of the
    constructor, with or without an underscore; ``further`` ones are not in its ``__dict__``.
    """
    if recorded is not None:
        return {name: value for name, value in recorded.items() if name not in _SKIPPED}
    try:
        parameters = inspect.signature(type(owner).__init__).parameters.values()
    except (TypeError, ValueError):
        return {}
    attributes = {**attributes_of(owner), **(further or {})}
    arguments: dict[str, object] = {}
    for parameter in parameters:
        if parameter.name in _SKIPPED or parameter.kind in (
            parameter.VAR_POSITIONAL,
            parameter.VAR_KEYWORD,
        ):
            continue
        for name in (parameter.name, f"_{parameter.name}"):
            if name in attributes:
                arguments[parameter.name] = attributes[name]
                break
    return arguments


def attributes_of(owner: object) -> dict[str, Any]:
    """Return the attributes in the ``__dict__`` and the ``__slots__`` of an object.

    ``__getattr__`` and properties of the object do not run.
    """
    attributes: dict[str, Any] = {}
    for kind in type(owner).__mro__:
        slots = kind.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            member = kind.__dict__.get(name)
            if name not in ("__dict__", "__weakref__") and inspect.ismemberdescriptor(member):
                try:
                    attributes[name] = member.__get__(owner)
                except AttributeError:
                    continue
    attributes.update(instance_dict(owner) or {})
    return attributes

"""Load the catalog: all transforms of tdx and of plugins, without importing torch or them."""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tdx.foundation.errors import summarize_error
from tdx.foundation.plugins import Plugin, find_plugins, load_plugins
from tdx.foundation.serialization import to_plain
from tdx.pipeline.transform_info import Catalog, TransformInfo

CATALOG_FILE = Path(__file__).with_name("catalog.json")
_PACKAGE = Path(__file__).parent.parent
_BASE = "Transform"


@cache
def load_catalog() -> Catalog:
    """Load the catalog of all transforms, without torch.

    Those of tdx are read from a generated file, those of plugins from their source.

    Example:
        >>> load_catalog()["StepCounter"].category
        'episode'
    """
    data = json.loads(CATALOG_FILE.read_text(encoding="utf-8"))
    own = tuple(TransformInfo.from_json(entry) for entry in data["transforms"])
    if not find_plugins("tdx.transforms"):
        return Catalog(own)
    return Catalog((*own, *read_plugin_transforms({info.name for info in own})))


def format_catalog(transforms: list[TransformInfo]) -> str:
    """Return the text of the catalog file."""
    data = {"version": 1, "transforms": to_plain(transforms)}
    return json.dumps(data, indent=1, ensure_ascii=False) + "\n"


def read_plugin_transforms(known: Collection[str]) -> tuple[TransformInfo, ...]:
    """Return the declarations of all transforms of plugins that can be read."""
    names = set(known)

    def read(plugin: Plugin) -> TransformInfo:
        info = read_plugin(plugin)
        if info.name in names:
            raise plugin.error("has the name of another transform")
        names.add(info.name)
        return info

    return load_plugins("tdx.transforms", read)


def read_plugin(plugin: Plugin) -> TransformInfo:
    """Read the declaration of a transform without importing it.

    Raises:
        PluginError: The source is missing, or has no such transform.
    """
    from tdx.pipeline.declarations import Definition, SourceTree, iterate_bases, read_class

    name = plugin.target.partition(":")[2]
    if name != plugin.name:
        raise plugin.error(f"must be named like its class, {name or 'module:Class'}")
    try:
        top = plugin.module.partition(".")[0]
        spec = find_spec(top) if top else None
        origin = None if spec is None else spec.origin
        if origin is None or not origin.endswith(".py"):
            raise plugin.error(f"has no Python source for {plugin.module or plugin.target}")
        root = Path(origin).parent if Path(origin).stem == "__init__" else Path(origin)
        module = SourceTree(_PACKAGE, root).module(plugin.module)
        node = None if module is None else module.classes.get(name)
        if module is None or node is None:
            raise plugin.error(f"is not a class in the source of {plugin.module}")
        definition = Definition(f"{module.dotted}.{name}", node, module)
        if not any(base.name == _BASE for base, _ in iterate_bases(definition)):
            raise plugin.error("is not a subclass of tdx.Transform")
        package = plugin.package.partition(" ")[0]
        info = read_class(definition, re.sub(r"^tdx[-_]|[-_]tdx$", "", package), package)
    except (SyntaxError, ValueError, OSError) as error:
        raise plugin.error(f"cannot be read: {summarize_error(error)}") from error
    if info is None:
        raise plugin.error("is an abstract class")
    return info


def load_plugin_transform(info: TransformInfo) -> Any:
    """Import the class of a transform of a plugin."""
    from tdx.core.transforms import Transform

    plugin = next(plugin for plugin in find_plugins("tdx.transforms") if plugin.name == info.name)
    loaded = plugin.load()
    if not (isinstance(loaded, type) and issubclass(loaded, Transform)):
        raise plugin.error("is not a subclass of tdx.Transform")
    return loaded

"""Plugins: what other packages register in the entry-point groups of tdx, and its own modules.

A plugin that cannot be used is disabled, and nothing else is: :func:`disabled_plugins` says why.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import redirect_stdout
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, TypeVar

from tdx.foundation.errors import PluginError, TdxError, summarize_error

Group = Literal["tdx.transforms", "tdx.rules", "tdx.exporters", "tdx.stacks"]
T = TypeVar("T")

GROUPS: Mapping[Group, str] = {
    "tdx.transforms": "transform",
    "tdx.rules": "rule",
    "tdx.exporters": "exporter",
    "tdx.stacks": "kind of stack",
}
"""Entry-point groups, and what one entry of each is."""
VARIABLE = "TDX_PLUGINS"
"""Environment variable that disables all plugins if it is ``0``."""
_REQUIRED: Mapping[Group, tuple[str, ...]] = {
    "tdx.exporters": ("format", "write"),
    "tdx.stacks": ("title", "accepts", "open"),
}
"""Attributes that the object of an entry must have."""
_ENTRY_FILES = ("*.dist-info/entry_points.txt", "*.egg-info/entry_points.txt")


@dataclass(frozen=True, slots=True)
class Plugin:
    """One entry point of a package; ``target`` is an object, ``module:name``, or a module.

    ``package`` is the name of the package with its version.
    """

    group: Group
    name: str
    target: str
    package: str

    def __str__(self) -> str:
        return f"{GROUPS[self.group]} {self.name} of {self.package}"

    @property
    def module(self) -> str:
        """Module of the object."""
        return self.target.partition(":")[0].strip()

    def load(self) -> Any:
        """Import the object. What the import prints goes to stderr.

        Raises:
            PluginError: It cannot be imported, or lacks attributes that its group requires.
        """
        from importlib.metadata import EntryPoint

        try:
            with redirect_stdout(sys.stderr):
                found = EntryPoint(self.name, self.target, self.group).load()
        except (Exception, SystemExit) as error:
            raise self.error(f"cannot be imported: {summarize_error(error)}") from error
        missing = [name for name in _REQUIRED.get(self.group, ()) if not hasattr(found, name)]
        if missing:
            raise self.error(f"has no {' and no '.join(missing)}")
        return found

    def error(self, reason: str) -> PluginError:
        """Return the error that this plugin is disabled, with the reason."""
        return PluginError(
            f"the {self} {reason}",
            hint=f"update or remove the package, or set {VARIABLE}=0; see tdx doctor",
        )


def own_modules(package: ModuleType | str, pattern: str = "*.py") -> Iterator[ModuleType]:
    """Import the modules of a package of tdx whose files match a pattern, such as ``*/kind.py``.

    A contribution of one kind is one file, or one folder, and nothing else lists it.
    """
    package = import_module(package) if isinstance(package, str) else package
    folder = Path(str(package.__file__)).parent
    for path in sorted(folder.glob(pattern)):
        if path.stem != "__init__":
            parts = path.relative_to(folder).with_suffix("").parts
            yield import_module(".".join((package.__name__, *parts)))


_DISABLED: dict[Plugin, TdxError] = {}


def are_plugins_enabled() -> bool:
    """Return False if the environment variable ``TDX_PLUGINS`` is ``0``."""
    return os.environ.get(VARIABLE, "").strip() != "0"


@cache
def find_plugins(group: Group) -> tuple[Plugin, ...]:
    """Return the plugins of a group by name, without importing them."""
    if not are_plugins_enabled() or not _has_entries():
        return ()
    from importlib.metadata import entry_points

    # A package that is on the path twice is found twice; the first one counts.
    plugins: dict[Plugin, None] = {}
    for entry in entry_points(group=group):
        package = entry.dist
        name = "an unknown package" if package is None else f"{package.name} {package.version}"
        plugins[Plugin(group, entry.name, entry.value, name)] = None
    return tuple(sorted(plugins, key=lambda plugin: (plugin.name, plugin.package)))


def installed_version(package: str) -> str | None:
    """Return the version of an installed package; ``None`` if it is not installed."""
    from importlib import metadata

    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def all_plugins() -> list[Plugin]:
    """Return the plugins of all groups, without importing them."""
    return [plugin for group in GROUPS for plugin in find_plugins(group)]


@cache
def _has_entries() -> bool:
    """Return True if a package on ``sys.path`` may have entries for tdx.

    Without plugins, which is the usual case, it takes a tenth of the time of ``entry_points()``.
    """
    for folder in dict.fromkeys(map(Path, sys.path)):
        if folder.is_file():
            # An archive of modules.
            return True
        for pattern in _ENTRY_FILES:
            for file in folder.glob(pattern):
                try:
                    if b"[tdx." in file.read_bytes():
                        return True
                except OSError:
                    continue
    return False


def load_plugins(group: Group, adapt: Callable[[Plugin], T]) -> tuple[T, ...]:
    """Return what each plugin of a group provides; one that ``adapt`` refuses is disabled."""
    adapted = []
    for plugin in find_plugins(group):
        if plugin in _DISABLED:
            continue
        try:
            adapted.append(adapt(plugin))
        except TdxError as error:
            disable_plugin(plugin, error)
    return tuple(adapted)


def disable_plugin(plugin: Plugin, error: TdxError) -> None:
    """Record why a plugin is not used, and warn about it once."""
    if plugin not in _DISABLED:
        _DISABLED[plugin] = error
        warnings.warn(f"{error.message}; it is disabled: see tdx doctor", stacklevel=2)


def disabled_plugins(group: Group | None = None) -> Mapping[Plugin, TdxError]:
    """Return the plugins of a group, or of all, that failed so far, with the reasons."""
    return {plugin: error for plugin, error in _DISABLED.items() if group in (None, plugin.group)}


def explain_missing(group: Group, name: str) -> str | None:
    """Return why a name of a group is missing, if a plugin with this name is disabled."""
    reasons = (
        error.message for plugin, error in disabled_plugins(group).items() if plugin.name == name
    )
    return next(reasons, None)

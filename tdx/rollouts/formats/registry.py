"""Formats by name, those of tdx and of plugins, and their functions.

Loads neither torch nor the library of any format.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tdx.foundation.errors import (
    ArgumentError,
    MissingPackageError,
    UnknownNameError,
    did_you_mean,
    install_extra,
)
from tdx.foundation.plugins import Plugin, explain_missing, load_plugins
from tdx.rollouts.formats.interface import ColumnReader, ExportOptions, ExportPlan, Format

if TYPE_CHECKING:
    from tdx.rollouts.formats.export_source import ExportSource


class Exporter:
    """Functions of one format: those of a module of tdx, or of an object of a plugin.

    Args:
        exporter: Has a function ``write(source, target, options)``, which writes a dump to a path
            and returns remarks for the user. Optionally, ``read(path)`` is a context manager with
            a :class:`ColumnReader`; ``plan(source, options)`` returns what ``write`` would write;
            and ``check(path)`` raises an error if the end of a file is missing, for a library that
            may not report that it could not write it.
    """

    def __init__(self, exporter: Any) -> None:
        self.write: Callable[[ExportSource, Path, ExportOptions], tuple[str, ...]] = exporter.write
        self.read: Callable[[Path], AbstractContextManager[ColumnReader]] | None
        self.read = getattr(exporter, "read", None)
        self.check: Callable[[Path], None] | None = getattr(exporter, "check", None)
        self._plan = getattr(exporter, "plan", None)

    def plan(self, source: ExportSource, options: ExportOptions) -> ExportPlan:
        """Return what :attr:`write` would write; by default all entries under their own names."""
        plan: ExportPlan = source.plan() if self._plan is None else self._plan(source, options)
        return plan


@cache
def builtin_formats() -> Mapping[str, tuple[Format, Plugin]]:
    """Return the formats of tdx by name, from ``format = Format(...)`` in their sources.

    No module is imported, because most of them load torch and NumPy.
    """
    found = {}
    for path in sorted(Path(__file__).parent.glob("*.py")):
        source = path.read_bytes()
        for node in ast.parse(source).body if b"\nformat = Format(" in source else ():
            match node:
                case ast.Assign([ast.Name("format")], ast.Call(ast.Name("Format"), [], fields)):
                    values = {str(field.arg): ast.literal_eval(field.value) for field in fields}
                    module = f"{__package__}.{path.stem}"
                    plugin = Plugin("tdx.exporters", values["name"], module, "tdx")
                    found[plugin.name] = (Format(**values), plugin)
    return found


_READ_BY = {
    "pandas": "parquet",
    "polars": "parquet",
    "datasets": "parquet",
    "duckdb": "parquet",
    "numpy": "npz",
    "torch": "safetensors",
    "h5py": "hdf5",
}
"""The format to export to for a library that reads it."""


@cache
def plugin_exporters() -> Mapping[str, Any]:
    """Load the exporters of plugins, by the names of their formats; see :class:`Exporter`."""
    names = set(builtin_formats())

    def load(plugin: Plugin) -> tuple[str, Any]:
        exporter = plugin.load()
        kind = exporter.format
        if not isinstance(kind, Format):
            raise plugin.error("has a format that is not a tdx.rollouts.formats.interface.Format")
        if kind.name != plugin.name:
            raise plugin.error(f"must be named like its format, {kind.name}")
        if kind.name in names:
            raise plugin.error("has the name of another format")
        names.add(kind.name)
        return kind.name, exporter

    return dict(load_plugins("tdx.exporters", load))


def export_formats() -> tuple[Format, ...]:
    """Return every format, those of plugins last.

    Example:
        >>> [kind.name for kind in export_formats() if not kind.packages]
        ['jsonl', 'npz', 'safetensors']
    """
    builtin = (kind for kind, _ in builtin_formats().values())
    return (*builtin, *(exporter.format for exporter in plugin_exporters().values()))


def load_exporter(kind: Format) -> Exporter:
    """Return the functions of a format."""
    for package in kind.packages:
        try:
            import_module(package)
        except ImportError as error:
            raise MissingPackageError(
                f"{kind.name} needs {package}, which is not installed",
                hint=install_extra(kind.extra)
                if kind.extra
                else f"install the package that provides {package}",
            ) from error
    builtin = builtin_formats().get(kind.name)
    return Exporter(plugin_exporters()[kind.name] if builtin is None else builtin[1].load())


def find_format(name: str) -> Format:
    """Return the format of a name."""
    known = {kind.name: kind for kind in export_formats()}
    if name not in known:
        hint = explain_missing("tdx.exporters", name) or did_you_mean(
            name, known, otherwise=f"one of {', '.join(known)}"
        )
        if (read := _READ_BY.get(name.casefold())) is not None:
            hint = f"{name} reads {read}: --to {read}"
        raise UnknownNameError(f"unknown format {name!r}", hint=hint)
    return known[name]


def format_of_suffix(path: str | Path | None) -> Format:
    """Return the format of the suffix of a path to write."""
    for kind in export_formats():
        if path is not None and Path(path).suffix.lower() in kind.suffixes:
            return kind
    names = ", ".join(kind.name for kind in export_formats())
    raise ArgumentError("the export has no format", hint=f"add --to: {names}")


def detect_format(path: Path) -> Format:
    """Return the format of an existing file or folder."""
    for kind in export_formats():
        if path.is_dir() == kind.is_folder and kind.is_in(path):
            return kind
    names = ", ".join(kind.name for kind in export_formats() if kind.can_import)
    raise ArgumentError(f"the format of {path} cannot be detected", hint=f"add --from: {names}")

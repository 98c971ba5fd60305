"""Formats by name, and their protocol: functions, options, plans, results, and readers.

Loads neither torch nor the library of any format.
"""

from __future__ import annotations

import ast
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from tdx.foundation.errors import (
    ArgumentError,
    MissingPackageError,
    UnknownNameError,
    did_you_mean,
    install_extra,
)
from tdx.foundation.plugins import Plugin, explain_missing, load_plugins
from tdx.foundation.serialization import Entries, Entry, Result

if TYPE_CHECKING:
    from tdx.rollouts.formats.export_source import ExportSource
    from tdx.rollouts.formats.files import Array, FileColumn

NOTE = "tdx"
"""Name of the note in a file."""


@dataclass(frozen=True, slots=True)
class Format:
    """A format that dumps are exported to.

    Args:
        name: Name in ``--to`` and ``--from``.
        title: Description.
        suffixes: File suffixes; the first is that of a new export.
        mark: File that a folder of this format has; ``None``: the format is a file.
        packages: Modules that must be importable.
        extra: Extra of tdx that installs them.
        can_import: Whether it can be imported as a dump.
        has_frames: Whether it is a video, with nothing but the pixels.
        holds_raw: Whether raw steps of the base env are exported too.
        has_lossy: Whether a video can be smaller than an exact one.
    """

    name: str
    title: str
    suffixes: tuple[str, ...]
    mark: str | None = None
    packages: tuple[str, ...] = ()
    extra: str | None = None
    can_import: bool = True
    has_frames: bool = False
    holds_raw: bool = False
    has_lossy: bool = False

    @property
    def is_folder(self) -> bool:
        """True if an export is a folder."""
        return self.mark is not None

    def is_in(self, path: Path) -> bool:
        """Return True if a file or folder appears to have this format."""
        if self.mark is not None:
            return (path / self.mark).exists()
        return path.suffix.lower() in self.suffixes


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
        for node in ast.parse(path.read_bytes()).body:
            match node:
                case ast.Assign([ast.Name("format")], ast.Call(ast.Name("Format"), [], fields)):
                    values = {str(field.arg): ast.literal_eval(field.value) for field in fields}
                    module = f"{__name__.rpartition('.')[0]}.{path.stem}"
                    plugin = Plugin("tdx.exporters", values["name"], module, "tdx")
                    found[plugin.name] = (Format(**values), plugin)
    return found


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
        >>> [each.name for each in export_formats() if not each.packages]
        ['jsonl', 'npz', 'safetensors']
    """
    builtin = (kind for kind, _ in builtin_formats().values())
    return (*builtin, *(exporter.format for exporter in plugin_exporters().values()))


def load_exporter(kind: Format) -> Exporter:
    """Return the functions of a format.

    Raises:
        MissingPackageError: A package that it needs is not installed.
    """
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
    """Return the format of a name.

    Raises:
        UnknownNameError: The name is unknown.
    """
    known = {each.name: each for each in export_formats()}
    if name not in known:
        hint = explain_missing("tdx.exporters", name) or did_you_mean(
            name, known, otherwise=f"one of {', '.join(known)}"
        )
        raise UnknownNameError(f"unknown format {name!r}", hint=hint)
    return known[name]


def format_of_suffix(path: str | Path | None) -> Format:
    """Return the format of the suffix of a path to write.

    Raises:
        ArgumentError: The path is missing, or its suffix is unknown.
    """
    for each in export_formats():
        if path is not None and Path(path).suffix.lower() in each.suffixes:
            return each
    names = ", ".join(each.name for each in export_formats())
    raise ArgumentError("the export has no format", hint=f"add --to: {names}")


def detect_format(path: Path) -> Format:
    """Return the format of an existing file or folder.

    Raises:
        ArgumentError: It cannot be detected.
    """
    for each in export_formats():
        if path.is_dir() == each.is_folder and each.is_in(path):
            return each
    names = ", ".join(each.name for each in export_formats() if each.can_import)
    raise ArgumentError(f"the format of {path} cannot be detected", hint=f"add --from: {names}")


@dataclass(frozen=True, slots=True)
class ExportOptions:
    """Options of an export.

    Args:
        episodes: Indices of the episodes, as in ``tdx show``. ``None``: all.
        fps: Frames per second of a video.
        split: Whether each episode gets its own file.
        lossy: Whether a video is small and plays everywhere, rather than exact.
        name: Name of the exported file or folder.
    """

    episodes: tuple[int, ...] | None = None
    fps: int = 30
    split: bool = False
    lossy: bool = False
    name: str = ""


@dataclass(frozen=True, slots=True)
class ExportColumn(Result):
    """An entry of a dump and its name in a file.

    Args:
        track: ``data``, or ``raw`` for the raw steps of the base env.
        path: Key of the entry.
        name: Name in the file.
    """

    json_entries: ClassVar[Entries] = ("track", Entry("key", "path"), "name")

    track: str
    path: tuple[str, ...]
    name: str


@dataclass(frozen=True, slots=True)
class ExportedEntry(Result):
    """An entry of a dump, and its place in the file.

    Args:
        key: Key as text, such as ``next.reward``.
        place: Name in the file.
        shape: Shape in one step of one env.
        dtype: Name such as ``"float32"``.
    """

    key: str
    place: str
    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True, slots=True)
class ExportPlan:
    """What an export will write.

    Args:
        entries: Entries and their places in the file.
        episodes: Number of episodes.
        size: Number of bytes before compression; ``None``: unknown.
        notes: Remarks for the user.
    """

    entries: tuple[ExportedEntry, ...]
    episodes: int
    size: int | None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Exported(Result):
    """Result of an export, or of its dry run.

    Args:
        source: Folder of the dump.
        path: Exported file or folder.
        format: Name of the format.
        written: Whether it was written.
        steps: Number of steps of each env.
        batch_size: Batch size of the envs.
        episodes: Number of episodes, including those still running.
        size: Number of bytes, before compression in a dry run; ``None``: unknown.
        notes: Remarks for the user.
        entries: Entries and their places in the file.
    """

    json_entries: ClassVar[Entries] = (
        *("source", "path", "format", "written", "steps", "batch_size", "episodes"),
        *(Entry("bytes", "size"), "notes", "entries"),
    )

    source: str
    path: str
    format: str
    written: bool
    steps: int
    batch_size: tuple[int, ...]
    episodes: int
    size: int | None
    notes: tuple[str, ...]
    entries: tuple[ExportedEntry, ...]


class ColumnReader(ABC):
    """Reads the columns of a file from the first step to the last.

    Attributes:
        note: Note of tdx; ``None`` in a file that tdx did not export.
        env: Id of the env and its arguments, if the file has them.
    """

    note: Mapping[str, Any] | None = None
    env: tuple[str, Mapping[str, Any]] | None = None

    @abstractmethod
    def columns(self) -> Mapping[str, FileColumn]:
        """Return every column by name."""

    def read_steps(self, names: Sequence[str], start: int, stop: int) -> Mapping[str, Array]:
        """Read a range of steps, ``[n, ...]`` per column.

        Ranges are contiguous: each one starts where the previous one stopped.
        """
        return {name: self.read_column(name, start, stop) for name in names}

    def read_column(self, name: str, start: int, stop: int) -> Array:
        """Read a range of steps of one column, ``[n, ...]``."""
        raise NotImplementedError(f"{type(self).__name__} has neither read_steps nor read_column")

    def is_at_end(self) -> bool:
        """Return True if no step remains to be read."""
        return True

    def notes(self) -> tuple[str, ...]:
        """Return remarks for the user about a file that tdx did not export."""
        return ()

"""Formats that dumps are exported to and imported from. Loads neither torch nor any library."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from tdx.errors import ArgumentError, MissingPackageError, UnknownNameError, did_you_mean


@dataclass(frozen=True, slots=True)
class Format:
    """A format that dumps are exported to.

    Args:
        name: what it is called.
        title: what it is.
        suffixes: how its files end; the first is that of a new one.
        mark: what a folder of this format has in it; none where it is a file.
        packages: what has to be installed, as it is imported.
        extra: of tdx, which installs these.
        can_import: whether a dump can be made of it again.
        has_frames: whether it shows pixels, and nothing else.
        holds_raw: whether what the env itself gave goes into it too.
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

    @property
    def is_folder(self) -> bool:
        """Whether it is a folder."""
        return self.mark is not None

    @property
    def module(self) -> Any:
        """The module that writes and reads it.

        Raises:
            MissingPackageError: a package that it needs is not installed.
        """
        for package in self.packages:
            try:
                import_module(package)
            except ImportError as error:
                raise MissingPackageError(
                    f"{self.name} needs {package}, which is not installed",
                    hint=f"pip install 'tdx[{self.extra}]'",
                ) from error
        return import_module(f"tdx.rollouts.formats.{self.name}")

    def is_in(self, path: Path) -> bool:
        """Whether a file or folder looks like it is of this format."""
        if self.mark is not None:
            return (path / self.mark).exists()
        return path.suffix.lower() in self.suffixes


_FORMATS = (
    Format(
        "minari",
        "a Minari dataset: episodes with T+1 observations, in HDF5",
        ("-v0",),
        mark="data/metadata.json",
        packages=("minari", "h5py"),
        extra="minari",
    ),
    Format(
        "parquet",
        "a table with a row a step, for pyarrow, pandas, Polars and DuckDB",
        (".parquet", ".pq"),
        packages=("pyarrow",),
        extra="parquet",
    ),
    Format(
        "hdf5",
        "one HDF5 file, a dataset an entry",
        (".h5", ".hdf5", ".hdf"),
        packages=("h5py",),
        extra="hdf5",
        holds_raw=True,
    ),
    Format(
        "zarr",
        "a Zarr 3 group, an array an entry",
        (".zarr",),
        mark="zarr.json",
        packages=("zarr",),
        extra="zarr",
        holds_raw=True,
    ),
    Format(
        "safetensors",
        "one safetensors file, a tensor an entry",
        (".safetensors",),
        holds_raw=True,
    ),
    Format("npz", "one file for numpy.load, an array an entry", (".npz",), holds_raw=True),
    Format("jsonl", "one line of JSON a step", (".jsonl", ".ndjson")),
    Format(
        "mp4",
        "a film of the pixels, lossless H.264",
        (".mp4",),
        packages=("av",),
        extra="video",
        can_import=False,
        has_frames=True,
    ),
    Format(
        "gif",
        "a film of the pixels in 256 colours",
        (".gif",),
        packages=("PIL",),
        extra="video",
        can_import=False,
        has_frames=True,
    ),
)


def export_formats() -> tuple[Format, ...]:
    """Every format.

    Example:
        >>> [each.name for each in export_formats() if not each.packages]
        ['safetensors', 'npz', 'jsonl']
    """
    return _FORMATS


def find_format(name: str) -> Format:
    """The format of that name.

    Raises:
        UnknownNameError: there is none.
    """
    known = {each.name: each for each in _FORMATS}
    if name not in known:
        hint = did_you_mean(name, known, otherwise=f"one of {', '.join(known)}")
        raise UnknownNameError(f"no format {name!r}", hint=hint)
    return known[name]


def format_of_suffix(path: Path | None) -> Format:
    """The format that a path to write to is named after.

    Raises:
        ArgumentError: its name does not say.
    """
    for each in _FORMATS:
        if path is not None and path.suffix.lower() in each.suffixes:
            return each
    names = ", ".join(each.name for each in _FORMATS)
    raise ArgumentError("it is not said which format is wanted", hint=f"add --to: {names}")


def detect_format(path: Path) -> Format:
    """The format of a file or folder that is there.

    Raises:
        ArgumentError: it cannot be told.
    """
    for each in _FORMATS:
        if path.is_dir() == each.is_folder and each.is_in(path):
            return each
    names = ", ".join(each.name for each in _FORMATS if each.can_import)
    raise ArgumentError(f"{path} does not show which format it has", hint=f"add --from: {names}")

"""Formats of exports and imports. Loads neither torch nor the library of any format."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tdx.errors import ArgumentError, UnknownNameError, did_you_mean


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
        """True if an export is a folder."""
        return self.mark is not None

    def is_in(self, path: Path) -> bool:
        """Return True if a file or folder appears to have this format."""
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
        "a table with one row per step, for pyarrow, pandas, Polars and DuckDB",
        (".parquet", ".pq"),
        packages=("pyarrow",),
        extra="parquet",
    ),
    Format(
        "hdf5",
        "one HDF5 file, one dataset per entry",
        (".h5", ".hdf5", ".hdf"),
        packages=("h5py",),
        extra="hdf5",
        holds_raw=True,
    ),
    Format(
        "zarr",
        "a Zarr 3 group, one array per entry",
        (".zarr",),
        mark="zarr.json",
        packages=("zarr",),
        extra="zarr",
        holds_raw=True,
    ),
    Format(
        "safetensors",
        "one safetensors file, one tensor per entry",
        (".safetensors",),
        holds_raw=True,
    ),
    Format("npz", "one file for numpy.load, one array per entry", (".npz",), holds_raw=True),
    Format("jsonl", "one line of JSON per step", (".jsonl", ".ndjson")),
    Format(
        "mp4",
        "a video of the pixels, lossless H.264",
        (".mp4",),
        packages=("av",),
        extra="video",
        can_import=False,
        has_frames=True,
    ),
    Format(
        "gif",
        "a video of the pixels in 256 colors",
        (".gif",),
        packages=("PIL",),
        extra="video",
        can_import=False,
        has_frames=True,
    ),
)


def export_formats() -> tuple[Format, ...]:
    """Return every format.

    Example:
        >>> [each.name for each in export_formats() if not each.packages]
        ['safetensors', 'npz', 'jsonl']
    """
    return _FORMATS


def find_format(name: str) -> Format:
    """Return the format of a name.

    Raises:
        UnknownNameError: The name is unknown.
    """
    known = {each.name: each for each in _FORMATS}
    if name not in known:
        hint = did_you_mean(name, known, otherwise=f"one of {', '.join(known)}")
        raise UnknownNameError(f"unknown format {name!r}", hint=hint)
    return known[name]


def format_of_suffix(path: str | Path | None) -> Format:
    """Return the format of the suffix of a path to write.

    Raises:
        ArgumentError: The path is missing, or its suffix is unknown.
    """
    for each in _FORMATS:
        if path is not None and Path(path).suffix.lower() in each.suffixes:
            return each
    names = ", ".join(each.name for each in _FORMATS)
    raise ArgumentError("the export has no format", hint=f"add --to: {names}")


def detect_format(path: Path) -> Format:
    """Return the format of an existing file or folder.

    Raises:
        ArgumentError: It cannot be detected.
    """
    for each in _FORMATS:
        if path.is_dir() == each.is_folder and each.is_in(path):
            return each
    names = ", ".join(each.name for each in _FORMATS if each.can_import)
    raise ArgumentError(f"the format of {path} cannot be detected", hint=f"add --from: {names}")

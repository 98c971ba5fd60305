"""Functions that write and read each format; importing them needs no optional package."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from tdx.errors import MissingPackageError
from tdx.rollouts.formats import hdf5, jsonl, minari, npz, parquet, safetensors, video, zarr
from tdx.rollouts.formats.interface import ColumnReader, ExportOptions, ExportPlan
from tdx.rollouts.formats.registry import Format
from tdx.rollouts.formats.stored import ExportSource


def _plan_all_entries(source: ExportSource, options: ExportOptions) -> ExportPlan:
    return source.plan()


@dataclass(frozen=True, slots=True)
class FormatCodec:
    """Functions of one format.

    Args:
        write: Writes a dump to a path, and returns remarks for the user.
        read: Opens a file or folder; ``None`` if the format cannot be imported.
        plan: Returns what ``write`` would write.
    """

    write: Callable[[ExportSource, Path, ExportOptions], tuple[str, ...]]
    read: Callable[[Path], AbstractContextManager[ColumnReader]] | None = None
    plan: Callable[[ExportSource, ExportOptions], ExportPlan] = _plan_all_entries


_CODECS = {
    "minari": FormatCodec(minari.write, minari.read, minari.plan),
    "parquet": FormatCodec(parquet.write, parquet.read),
    "hdf5": FormatCodec(hdf5.write, hdf5.read),
    "zarr": FormatCodec(zarr.write, zarr.read),
    "safetensors": FormatCodec(safetensors.write, safetensors.read),
    "npz": FormatCodec(npz.write, npz.read),
    "jsonl": FormatCodec(jsonl.write, jsonl.read),
    "mp4": FormatCodec(video.write_mp4, plan=video.plan),
    "gif": FormatCodec(video.write_gif, plan=video.plan),
}


def find_codec(kind: Format) -> FormatCodec:
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
                hint=f"pip install 'tdx[{kind.extra}]'",
            ) from error
    return _CODECS[kind.name]

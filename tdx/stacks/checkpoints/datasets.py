"""Find and read the folder of a dataset, whatever program wrote it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tdx.foundation.errors import StorageError
from tdx.stacks.checkpoints.dataset import Dataset
from tdx.stacks.checkpoints.lerobot_data import INFO, read_lerobot
from tdx.stacks.checkpoints.minari import METADATA, read_minari


@dataclass(frozen=True, slots=True)
class DatasetFormat:
    """How a program stores recorded data in a folder."""

    title: str  # Program and file, for lists.
    name: str  # What a folder is, for messages.
    file: str  # By which a folder is recognized.
    package: str
    read: Callable[[Path], Dataset]


DATASET_FORMATS = (
    DatasetFormat(
        f"{INFO} (LeRobot 2.1 and 3.0)", "a LeRobot dataset", INFO, "pyarrow", read_lerobot
    ),
    DatasetFormat(
        f"data/{METADATA} (Minari)", "a Minari dataset", f"data/{METADATA}", "minari", read_minari
    ),
)


def find_dataset_format(path: str | Path) -> DatasetFormat | None:
    """Return the format of the dataset in a folder; ``None`` if it has none."""
    return next((form for form in DATASET_FORMATS if Path(path, form.file).is_file()), None)


def is_dataset(path: str | Path) -> bool:
    """Return True for the folder of a LeRobot or Minari dataset."""
    return find_dataset_format(path) is not None


def read_dataset(path: str | Path) -> Dataset:
    """Read what a dataset declares, and the statistics that it stores.

    Args:
        path: Its folder.

    Raises:
        MissingPackageError: A package that reads it is not installed.
        StorageError: A file is missing or malformed.
    """
    form = find_dataset_format(path)
    if form is None:
        files = " or ".join(form.file for form in DATASET_FORMATS)
        raise StorageError(
            f"{path} is not a dataset: it has no {files}",
            hint="pass the folder of a LeRobot or Minari dataset",
        )
    return form.read(Path(path))

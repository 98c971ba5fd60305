"""Read recorded samples: arrays by key, from a file."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from tdx.foundation.errors import StorageError

MAX_SAMPLES_BYTES = 2**31


def read_samples(path: str | Path) -> list[Mapping[str, object]]:
    """Read samples from an ``.npz`` or ``.safetensors`` file: arrays ``[N, ...]`` by key.

    Raises:
        StorageError: The file cannot be read, or its arrays have different lengths.
    """
    path = Path(path)
    try:
        if path.stat().st_size > MAX_SAMPLES_BYTES:
            raise StorageError(f"{path} has more than {MAX_SAMPLES_BYTES:,} bytes")
        if path.suffix == ".safetensors":
            from safetensors.numpy import load_file

            arrays = dict(load_file(path))
        else:
            with np.load(path, allow_pickle=False) as file:
                arrays = {name: file[name] for name in file.files}
    except (OSError, ValueError, KeyError, AttributeError, zipfile.BadZipFile) as error:
        raise StorageError(
            f"{path} has no samples: {error}", hint="save them with numpy.savez(path, **arrays)"
        ) from error
    lengths = {name: len(array) if array.ndim else 0 for name, array in arrays.items()}
    if not lengths or len(set(lengths.values())) > 1 or 0 in lengths.values():
        listed = ", ".join(f"{name!r}: {length}" for name, length in lengths.items()) or "none"
        raise StorageError(
            f"the arrays of {path} do not have one number of samples: {listed}",
            hint="the first dimension of each array is the sample",
        )
    count = next(iter(lengths.values()))
    return [{name: array[index] for name, array in arrays.items()} for index in range(count)]

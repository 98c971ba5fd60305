"""Samples for stacks without an env: from an exported file, a dataset or a dump."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from tdx.foundation.errors import StorageError
from tdx.foundation.files import report_read_errors
from tdx.foundation.keys import format_key

MAX_BYTES = 2**31
MAX_DUMP_STEPS = 10_000
SAMPLE_FILES = {".npz": "npz", ".safetensors": "safetensors"}


def read_samples(path: str | Path) -> Sequence[Mapping[str, object]]:
    """Read samples from a file of arrays ``[N, ...]``, a LeRobot or Minari dataset, or a dump."""
    from tdx.stacks.checkpoints import is_dataset, read_dataset
    from tdx.stacks.checkpoints.dataset import DatasetSamples

    path = Path(path)
    if is_dataset(path):
        return DatasetSamples(read_dataset(path))
    if (path / "manifest.json").exists():
        return _read_dump(path)
    if path.suffix not in SAMPLE_FILES:
        raise StorageError(
            f"{path} has no samples",
            hint="save them with numpy.savez(path, **arrays), or name a dataset or a dump",
        )
    return _read_file(path)


def _read_file(path: Path) -> list[Mapping[str, object]]:
    from tdx.rollouts.formats.files import is_numeric
    from tdx.rollouts.formats.registry import find_format, load_exporter

    read = load_exporter(find_format(SAMPLE_FILES[path.suffix])).read
    assert read is not None
    missing = StorageError(f"{path} does not exist")
    with report_read_errors(path, missing=missing), read(path) as reader:
        columns = reader.columns()
        for name, column in columns.items():
            if not is_numeric(column.dtype):
                raise StorageError(
                    f"{name!r} in {path} has no numbers", hint="save arrays of numbers"
                )
        sizes = [math.prod(column.shape) * column.dtype.itemsize for column in columns.values()]
        if sum(sizes) > MAX_BYTES:
            raise StorageError(
                f"the samples in {path} have {sum(sizes):,} bytes",
                hint=f"{MAX_BYTES:,} can be read: save fewer samples",
            )
        lengths = {name: (column.shape or (0,))[0] for name, column in columns.items()}
        if not lengths or len(set(lengths.values())) > 1 or 0 in lengths.values():
            listed = ", ".join(f"{name!r}: {length}" for name, length in lengths.items()) or "none"
            raise StorageError(
                f"the arrays of {path} do not have one number of samples: {listed}",
                hint="the first dimension of each array is the sample",
            )
        count = next(iter(lengths.values()))
        arrays = reader.read_steps(list(columns), 0, count)
    return [{name: array[index] for name, array in arrays.items()} for index in range(count)]


def _read_dump(path: Path) -> list[Mapping[str, object]]:
    """Return the first steps of a dump; each row of a batch is a sample."""
    from tdx.rollouts import open_dump

    dump = open_dump(path)
    samples: list[Mapping[str, object]] = []
    for index in range(min(len(dump), MAX_DUMP_STEPS)):
        step = dump[index]
        for row in step.reshape(-1) if step.batch_dims else [step]:
            # What a step returned is read by the next one.
            leaves = row.exclude("next").items(include_nested=True, leaves_only=True)
            samples.append({format_key(key): value.numpy() for key, value in leaves})
    return samples

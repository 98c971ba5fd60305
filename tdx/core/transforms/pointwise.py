"""Derive the eager, dict and chunk forms of a pointwise transform from its kernel."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from typing import Any

from tensordict import TensorDictBase

from tdx.core.envs.failures import note_key
from tdx.core.transforms.chunk import Chunk, ChunkKernel
from tdx.core.transforms.keys import KeyPairs, flat_pairs, missing_key_error
from tdx.errors import KeyNotFoundError
from tdx.keys import NestedKey
from tdx.tensordicts import read, write

Kernel = Callable[[Any], Any]
Entries = Mapping[str, Any]
DictStep = Callable[[Entries, dict[str, Any]], None]
"""A step on plain dicts of root entries: reads the step's input, writes to its output."""
MissingKey = Callable[[NestedKey, Any], KeyNotFoundError]


class TimeBehaviour(Enum):
    """Which time steps the output of a transform depends on; decides when it can run.

    ``POINTWISE``: each step is mapped independently, with any number of leading dims. ``SCAN``:
    a step depends on earlier steps of the same episode. ``CONTROL``: the transform influences
    later steps, or nothing is known about it.
    """

    POINTWISE = "pointwise"
    SCAN = "scan"
    CONTROL = "control"


def map_entries(
    tensordict: TensorDictBase,
    pairs: Iterable[tuple[NestedKey, NestedKey]],
    kernel: Kernel,
    missing: MissingKey | None = None,
) -> TensorDictBase:
    """Map entries in place.

    Args:
        tensordict: Entries ``[*B, ...]``.
        pairs: Key to read and key to write, for each entry.
        kernel: Function of one entry.
        missing: Makes the error for a missing entry. ``None``: skip missing entries.

    Raises:
        KeyNotFoundError: An entry is missing.
    """
    for source, target in pairs:
        value = read(tensordict, source)
        if value is None:
            if missing is None:
                continue
            raise missing(source, tensordict)
        try:
            mapped = kernel(value)
        except Exception as error:
            note_key(error, source)
            raise
        write(tensordict, target, mapped)
    return tensordict


def dict_step(pairs: KeyPairs, kernel: Kernel, missing: MissingKey) -> DictStep | None:
    """Return a kernel as a step on plain dicts; ``None`` if a key is nested.

    Args:
        pairs: Key to read and key to write, for each entry.
        kernel: Function of one entry.
        missing: Makes the error for a missing entry.
    """
    flat = flat_pairs(pairs)
    if flat is None:
        return None

    def step(tensordict: Entries, fields: dict[str, Any]) -> None:
        for in_key, out_key in flat:
            value = fields.get(in_key)
            if value is None:
                raise missing(in_key, fields)
            fields[out_key] = kernel(value)

    return step


def chunk_kernel(pairs: KeyPairs, kernel: Kernel) -> ChunkKernel:
    """Return a kernel as a function of a chunk, to which it is applied as a whole."""

    def run(chunk: Chunk) -> None:
        for in_key, out_key in pairs:
            if in_key not in chunk.steps:
                raise missing_key_error(in_key, list(chunk.steps), "the TensorDict")
            chunk.map(in_key, out_key, kernel)

    return ChunkKernel(run, tuple(key for key, _ in pairs), tuple(key for _, key in pairs))

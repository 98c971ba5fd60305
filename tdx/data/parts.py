"""Parts of a replay buffer: how they are created, and their state."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from tdx.core.transforms.validation import check_integer
from tdx.data.samplers import Sampler
from tdx.data.storage import Storage
from tdx.data.writers import Writer
from tdx.foundation.errors import ArgumentError


def build_part(part: Any, kind: type, default: Callable[[], Any] | None = None) -> Any:
    """Return a part of the buffer, or what a function creates for it.

    Args:
        part: Part, function that creates it, or ``None`` for the default.
        kind: Type of the part.
        default: Creates the default.

    Raises:
        ArgumentError: It has another type.
    """
    if part is None and default is not None:
        return default()
    if not isinstance(part, kind) and callable(part):
        part = part()
    if not isinstance(part, kind):
        raise ArgumentError(
            f"{kind.__name__.lower()} must be a {kind.__name__}, got {type(part).__name__}",
            hint="or a function that creates one",
        )
    return part


def check_batch_size(batch_size: int) -> int:
    """Return a batch size.

    Raises:
        ArgumentError: It is not an integer of at least 1.
    """
    return check_integer(batch_size, "batch_size", 1, "pass the number of steps in a batch")


def default_batch_size(batch_size: int | None, sampler: Sampler) -> int | None:
    """Return the default batch size of a buffer, if it or its sampler has one.

    Raises:
        ArgumentError: It is not an integer of at least 1, or missing although the sampler skips
            smaller batches.
    """
    if batch_size is None:
        batch_size = sampler.batch_size
    if batch_size is not None:
        return check_batch_size(batch_size)
    if getattr(sampler, "drop_last", False):
        raise ArgumentError(
            "Samplers with drop_last=True must work with a predictable batch-size",
            hint="pass batch_size to the buffer",
        )
    return None


def refuse_sharing(shared: bool) -> None:
    """Check that a buffer is not shared between processes.

    Raises:
        ArgumentError: It is.
    """
    if shared:
        raise ArgumentError(
            "a replay buffer belongs to one process, got shared=True",
            hint="send data to its process, or exchange saved buffers by dumps() and loads()",
        )


def collect_state(
    storage: Storage, sampler: Sampler, writer: Writer, chain: nn.Module
) -> dict[str, Any]:
    """Return a copy of the data and the state of every part."""
    generator = sampler.generator
    return {
        "_storage": storage.state_dict(),
        "_sampler": sampler.state_dict(),
        "_writer": writer.state_dict(),
        "_transforms": chain.state_dict(),
        "_rng": None if generator is None else generator.get_state(),
    }


def apply_state(
    state: dict[str, Any], storage: Storage, sampler: Sampler, writer: Writer, chain: nn.Module
) -> None:
    """Load what :func:`collect_state` returned.

    Raises:
        ArgumentError: The storage is too small for the data, or was created for other data.
        StorageError: The state of a part is not valid.
    """
    storage.load_state_dict(state["_storage"])
    sampler.reset()
    sampler.load_state_dict(state["_sampler"])
    sampler.attach_to(storage)
    writer.load_state_dict(state["_writer"])
    chain.load_state_dict(state["_transforms"])
    if state.get("_rng") is not None:
        if sampler.generator is None:
            sampler.generator = torch.Generator()
        sampler.generator.set_state(state["_rng"])

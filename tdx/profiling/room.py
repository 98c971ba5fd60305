"""Whether there is enough memory for something, before it is tried."""

from __future__ import annotations

import gc
from contextlib import suppress
from pathlib import Path

import torch

TIMES = 4
"""A step is there as the env's output, as the chain's, in the chunk, and while that is joined."""
_SIGNS = ("out of memory", "allocate memory", "unable to allocate", "memoryerror")


def is_out_of_memory(message: str) -> bool:
    """Whether an error says that memory has run out."""
    return any(sign in message.casefold() for sign in _SIGNS)


def free_bytes(device: torch.device) -> int | None:
    """How much memory is free on a device; ``None`` where that is not known."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return _host_bytes() if device.type == "cpu" else None


def _host_bytes() -> int | None:
    found = []
    limit, used = (
        _number(Path("/sys/fs/cgroup") / name) for name in ("memory.max", "memory.current")
    )
    if limit is not None and used is not None:
        found.append(limit - used)
    with suppress(OSError):
        lines = Path("/proc/meminfo").read_text().splitlines()
        kibibytes = [line.split()[1] for line in lines if line.startswith("MemAvailable:")]
        found += [int(each) * 1024 for each in kibibytes]
    return min(found, default=None)


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None


def freed() -> None:
    """Give back what is not needed any longer."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def in_words(size: float) -> str:
    """A number of bytes as a person reads it.

    Example:
        >>> in_words(3 * 2**30)
        '3.0 GiB'
    """
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"

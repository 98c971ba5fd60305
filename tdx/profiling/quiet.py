"""A quiet place to measure in: no garbage collection, and a known number of threads."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def quiet(threads: int | None = None) -> Iterator[None]:
    """Keep the garbage collector from running, and torch to a number of threads.

    Args:
        threads: for torch's operators; as many as before by default.
    """
    collecting, before = gc.isenabled(), torch.get_num_threads()
    gc.collect()
    gc.disable()
    if threads is not None:
        torch.set_num_threads(threads)
    try:
        yield
    finally:
        if threads is not None:
            torch.set_num_threads(before)
        if collecting:
            gc.enable()

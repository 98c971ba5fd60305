"""The global random number generators of torch on the host, NumPy and Python."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

GeneratorStates = tuple[Tensor, Any, tuple[Any, ...]]


def get_generators() -> GeneratorStates:
    """Return the states of the generators."""
    return torch.get_rng_state(), np.random.get_state(), random.getstate()


def set_generators(states: GeneratorStates) -> None:
    """Put the generators into the states that :func:`get_generators` returned."""
    of_torch, of_numpy, of_python = states
    torch.set_rng_state(of_torch)
    np.random.set_state(of_numpy)
    random.setstate(of_python)


@contextmanager
def preserved_generators() -> Iterator[None]:
    """Restore the generators after a block."""
    states = get_generators()
    try:
        yield
    finally:
        set_generators(states)

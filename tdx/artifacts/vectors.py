"""Reference vectors: inputs with resets and unusual numbers, and what the chain returns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

EPISODES = (9, 1, 14, 6)
"""Steps of each episode."""
_MAX_BYTES = 4 << 20
_ORDINARY = (-0.0, 0.0, 1e-40, -1e-40, 1.0, -1.0)
_NOT_FINITE = (float("nan"), float("inf"), -float("inf"))


@dataclass(frozen=True, slots=True)
class ReferenceCall:
    """One call of a function.

    Args:
        function: Name of the function.
        inputs: Inputs without the state, by name.
        outputs: Outputs and state, by name, as the chain computes them.
    """

    function: str
    inputs: Mapping[str, Tensor]
    outputs: Mapping[str, Tensor] = field(default_factory=dict)


def sample_inputs(
    specs: Mapping[str, Mapping[str, Any]], names: Sequence[str], seed: int = 0
) -> list[ReferenceCall]:
    """Draw the inputs of a few episodes from specs.

    Floats have several magnitudes, zeros of both signs and denormals; the last steps of an episode
    have NaN and infinities, which a reset must remove from the state.

    Args:
        specs: Spec of each input by function and name.
        names: Functions of the chain.
        seed: Seed of the values.
    """
    generator = torch.Generator().manual_seed(seed)
    size = sum(_size(spec) for spec in specs["step"].values())
    episodes = EPISODES if size * sum(EPISODES) <= _MAX_BYTES else (4, 1)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)

        def call(name: str, *, broken: bool) -> ReferenceCall:
            values = {
                entry: _disturbed(spec.rand().cpu(), generator, broken=broken)
                for entry, spec in specs[name].items()
            }
            return ReferenceCall(name, values)

        calls = []
        for length in episodes:
            calls.append(call("reset", broken=False))
            for step in range(length):
                broken = step >= max(length - 2, 2)
                if "act" in names:
                    calls.append(call("act", broken=broken))
                calls.append(call("step", broken=broken))
    return calls


def _size(spec: Any) -> int:
    return int(spec.shape.numel()) * spec.dtype.itemsize


def _disturbed(value: Tensor, generator: torch.Generator, *, broken: bool) -> Tensor:
    """Scale some values, and replace some elements by unusual numbers."""
    if not value.dtype.is_floating_point:
        return value
    draw = int(torch.randint(0, 4, (), generator=generator))
    if draw == 0:
        value = value * 10.0 ** int(torch.randint(-2, 4, (), generator=generator))
    special = _NOT_FINITE if broken else _ORDINARY
    if draw == 1 or broken:
        chosen = torch.randint(0, len(special), value.shape, generator=generator)
        rows = torch.rand(value.shape, generator=generator) < 0.4
        value = torch.where(rows, torch.tensor(special, dtype=value.dtype)[chosen], value)
    return value


def same_bits(a: Tensor, b: Tensor) -> bool:
    """Return True for equal dtypes, shapes and bits; NaN equals NaN."""
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    if not a.dtype.is_floating_point:
        return torch.equal(a, b)
    nan = torch.isnan(a)
    if not torch.equal(nan, torch.isnan(b)):
        return False
    kinds = {2: torch.int16, 4: torch.int32, 8: torch.int64}
    kind = kinds[a.dtype.itemsize]
    bits = (value.masked_fill(nan, 0).contiguous().view(kind) for value in (a, b))
    return torch.equal(*bits)


def as_arrays(calls: Sequence[ReferenceCall]) -> dict[str, np.ndarray[Any, Any]]:
    """Return calls as arrays: their order, and each entry stacked over its calls."""
    names = sorted({call.function for call in calls})
    arrays = {"calls": np.array([call.function for call in calls])}
    for name in names:
        own = [call for call in calls if call.function == name]
        for side in ("inputs", "outputs"):
            for entry in getattr(own[0], side):
                column = torch.stack([getattr(call, side)[entry] for call in own])
                arrays[f"{name}/{side}/{entry}"] = column.numpy()
    return arrays

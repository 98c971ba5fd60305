"""Reference vectors: inputs with resets and unusual numbers, and what the chain returns."""

from __future__ import annotations

import io
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
    """A call of a function: inputs without the state, and what the chain returns, with it."""

    function: str
    inputs: Mapping[str, Tensor]
    outputs: Mapping[str, Tensor] = field(default_factory=dict)


def sample_inputs(specs: Mapping[str, Mapping[str, Any]]) -> list[ReferenceCall]:
    """Draw the inputs of a few episodes from the spec of each input, by function and name."""
    generator = torch.Generator().manual_seed(0)
    size = sum(spec.shape.numel() * spec.dtype.itemsize for spec in specs["step"].values())
    episodes = EPISODES if size * sum(EPISODES) <= _MAX_BYTES else (4, 1)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)

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
                # NaN and infinities, which a reset must remove from the state.
                broken = step >= max(length - 2, 2)
                if "act" in specs:
                    calls.append(call("act", broken=broken))
                calls.append(call("step", broken=broken))
    return calls


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


def pack(calls: Sequence[ReferenceCall], initial: Mapping[str, Tensor]) -> bytes:
    """Return a ``.npz`` of the order of the calls, each entry over its calls, and the state."""
    arrays: dict[str, np.ndarray[Any, Any]] = {"calls": np.array([call.function for call in calls])}
    for name in sorted({call.function for call in calls}):
        own = [call for call in calls if call.function == name]
        for side in ("inputs", "outputs"):
            for entry in getattr(own[0], side):
                column = torch.stack([getattr(call, side)[entry] for call in own])
                arrays[f"{name}/{side}/{entry}"] = column.numpy()
    arrays |= {f"initial/{name}": value.numpy() for name, value in initial.items()}
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)  # type: ignore[arg-type]
    return buffer.getvalue()

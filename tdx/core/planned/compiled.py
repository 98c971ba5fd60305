"""Neighbouring pointwise stages as one function that torch has compiled."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from typing import Any

import torch
from torch import Tensor

from tdx.core.meter import Meter, Part
from tdx.core.plan.forms import StageForm
from tdx.core.transforms import TimeBehaviour, Transform
from tdx.core.transforms.chunk import Chunk, Columns
from tdx.errors import DeviceError
from tdx.keys import NestedKey

_Move = tuple[NestedKey, NestedKey, Callable[[Tensor], Tensor]]


class CompiledStages:
    """Some pointwise stages, compiled together; values agree within float rounding.

    Args:
        forms: the stages in order; each maps tensor by tensor.
        backend: the compiler, as ``torch.compile`` names it.
    """

    def __init__(self, forms: Sequence[StageForm], backend: str) -> None:
        self.forms = tuple(forms)
        self._moves: list[_Move] = [
            (in_key, out_key, form.stage._apply_transform)
            for form in forms
            for in_key, out_key in zip(form.stage.in_keys, form.stage.out_keys, strict=True)
        ]
        outs = dict.fromkeys(out_key for _, out_key, _ in self._moves)
        self._outs = tuple(outs)
        self._ins = tuple(dict.fromkeys(_read_first(self._moves)))
        # Chunks differ in length, which is no reason to compile anew.
        self._function: Any = torch.compile(self._mapped, backend=backend, dynamic=True)

    def _mapped(self, *values: Tensor) -> tuple[Tensor | None, ...]:
        known = dict(zip(self._ins, values, strict=True))
        for in_key, out_key, function in self._moves:
            if in_key in known:
                known[out_key] = function(known[in_key])
        return tuple(known.get(key) for key in self._outs)

    def measured(self, meter: Meter) -> CompiledStages:
        """The same, with each of its runs measured."""
        copied = copy(self)
        first, last = self.forms[0], self.forms[-1]
        name = " + ".join(form.name for form in self.forms)
        part = Part("stage", first.index, name, "forward", last.index)
        copied.run = meter.timed(  # type: ignore[method-assign]
            part, self.run, steps=lambda chunk: chunk.length
        )
        return copied

    def run(self, chunk: Chunk) -> None:
        """Run the stages over a chunk, in place.

        Raises:
            DeviceError: torch cannot compile here.
        """
        present = tuple(key for key in self._ins if key in chunk.steps)
        if present != self._ins:
            for form in self.forms:
                assert form.form is not None
                form.form.run(chunk)
            return
        self._map(chunk.steps)
        if chunk.times:
            resets = {key: value for key, value in chunk.resets.items() if key in self._ins}
            for in_key, out_key, function in self._moves:
                if in_key in resets:
                    resets[out_key] = function(resets[in_key])
            chunk.resets.update(resets)

    def _map(self, columns: Columns) -> None:
        try:
            made = self._function(*[columns[key] for key in self._ins])
        except (RuntimeError, ImportError, OSError) as error:
            if not type(error).__module__.startswith(("torch._dynamo", "torch._inductor")):
                raise
            raise DeviceError(
                f"torch.compile failed: {next(iter(str(error).splitlines()), 'no message')}",
                hint="install a C++ compiler such as g++, or leave compile out",
            ) from error
        for key, value in zip(self._outs, made, strict=True):
            if value is not None:
                columns[key] = value


def _read_first(moves: Sequence[_Move]) -> list[NestedKey]:
    """The keys that are read before any of the moves writes them."""
    written: set[NestedKey] = set()
    found = []
    for in_key, out_key, _ in moves:
        if in_key not in written:
            found.append(in_key)
        written.add(out_key)
    return found


def compiled_groups(forms: Sequence[StageForm], backend: str) -> dict[int, CompiledStages]:
    """The runs of neighbouring stages that can be compiled, by the index of their first one.

    Args:
        forms: the stages that wait, in order; a gap in their indices parts two groups.
        backend: the compiler.
    """
    groups: list[list[StageForm]] = []
    for form in forms:
        if not _maps_tensors(form.stage):
            continue
        if groups and groups[-1][-1].index == form.index - 1:
            groups[-1].append(form)
        else:
            groups.append([form])
    return {group[0].index: CompiledStages(group, backend) for group in groups}


def _maps_tensors(stage: Transform) -> bool:
    kind = type(stage)
    return (
        stage.time_behaviour is TimeBehaviour.POINTWISE
        and kind._chunk_kernel is Transform._chunk_kernel
        and bool(stage.in_keys)
    )

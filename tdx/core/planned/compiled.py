"""Groups of deferred stages that ``torch.compile`` turns into one function."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from typing import Any

import torch
from torch import Tensor

from tdx.core.chain import PlannedStage
from tdx.core.envs.env_base import EnvBase
from tdx.core.meter import Meter, Part
from tdx.core.plan.build import PlanCache, Program
from tdx.core.transforms import TimeBehavior, Transform
from tdx.core.transforms.kernels import Chunk, Columns, owner
from tdx.errors import DeviceError
from tdx.keys import NestedKey

_Move = tuple[NestedKey, NestedKey, Callable[[Tensor], Tensor]]


class CompiledStages:
    """Neighboring pointwise stages, compiled into one function.

    Values agree with those of the single stages within float rounding.

    Args:
        stages: The stages in order; each maps tensor by tensor.
        backend: The compiler, as ``torch.compile`` names it.
    """

    def __init__(self, stages: Sequence[PlannedStage], backend: str) -> None:
        self.stages = tuple(stages)
        self._moves: list[_Move] = [
            (in_key, out_key, planned.stage._apply_transform)
            for planned in stages
            for in_key, out_key in zip(planned.stage.in_keys, planned.stage.out_keys, strict=True)
        ]
        outputs = dict.fromkeys(out_key for _, out_key, _ in self._moves)
        self._outputs = tuple(outputs)
        self._inputs = tuple(dict.fromkeys(_external_inputs(self._moves)))
        # Chunks differ in length, which must not cause a recompilation.
        self._function: Any = torch.compile(self._map_values, backend=backend, dynamic=True)

    def _map_values(self, *values: Tensor) -> tuple[Tensor | None, ...]:
        known = dict(zip(self._inputs, values, strict=True))
        for in_key, out_key, function in self._moves:
            if in_key in known:
                known[out_key] = function(known[in_key])
        return tuple(known.get(key) for key in self._outputs)

    def measured(self, meter: Meter) -> CompiledStages:
        """Return a copy whose runs are measured."""
        copied = copy(self)
        first, last = self.stages[0], self.stages[-1]
        name = " + ".join(planned.name for planned in self.stages)
        part = Part("stage", first.index, name, "forward", last.index)
        copied.run = meter.timed(  # type: ignore[method-assign]
            part, self.run, steps=lambda chunk: chunk.length
        )
        return copied

    def run(self, chunk: Chunk) -> None:
        """Run the stages over a chunk, in place.

        Raises:
            DeviceError: torch cannot compile on this machine.
        """
        present = tuple(key for key in self._inputs if key in chunk.steps)
        if present != self._inputs:
            for planned in self.stages:
                assert planned.chunk_form is not None
                planned.chunk_form.run(chunk)
            return
        self._map_columns(chunk.steps)
        if chunk.times:
            resets = {key: value for key, value in chunk.resets.items() if key in self._inputs}
            for in_key, out_key, function in self._moves:
                if in_key in resets:
                    resets[out_key] = function(resets[in_key])
            chunk.resets.update(resets)

    def _map_columns(self, columns: Columns) -> None:
        try:
            results = self._function(*[columns[key] for key in self._inputs])
        except (RuntimeError, ImportError, OSError) as error:
            if not _is_compiler_error(error):
                raise
            raise DeviceError(
                f"torch.compile failed: {next(iter(str(error).splitlines()), 'no message')}",
                hint="install a C++ compiler such as g++, or leave compile out",
            ) from error
        for key, value in zip(self._outputs, results, strict=True):
            if value is not None:
                columns[key] = value


def _is_compiler_error(error: Exception) -> bool:
    """Return True if torch's compiler raised the error, not one of the stages."""
    import torch._dynamo.exc
    import torch._inductor.exc

    exceptions = (torch._dynamo.exc, torch._inductor.exc)
    return any(vars(each).get(type(error).__name__) is type(error) for each in exceptions)


def _external_inputs(moves: Sequence[_Move]) -> list[NestedKey]:
    """Return the keys that are read before any of the moves writes them."""
    written: set[NestedKey] = set()
    found = []
    for in_key, out_key, _ in moves:
        if in_key not in written:
            found.append(in_key)
        written.add(out_key)
    return found


def compiled_stages(env: EnvBase, program: Program, backend: str) -> Mapping[int, CompiledStages]:
    """Return the compiled groups of deferred stages by their first index, cached with the env."""
    cache: PlanCache = env._specs.cache.setdefault("compiled", PlanCache())
    key = (backend, program.immediate)
    if key not in cache:
        fused = () if program.fused is None else program.fused.indices
        excluded = program.immediate.union(fused)
        deferred = [planned for planned in program.stages if planned.index not in excluded]
        cache[key] = compile_stages(deferred, backend)
    groups: Mapping[int, CompiledStages] = cache[key]
    return groups


def compile_stages(stages: Sequence[PlannedStage], backend: str) -> dict[int, CompiledStages]:
    """Return the groups of neighboring stages that can be compiled, by their first index.

    Args:
        stages: The deferred stages, in order; a gap in their indices separates two groups.
        backend: The compiler.
    """
    groups: list[list[PlannedStage]] = []
    for planned in stages:
        if not _maps_tensors(planned.stage):
            continue
        if groups and groups[-1][-1].index == planned.index - 1:
            groups[-1].append(planned)
        else:
            groups.append([planned])
    return {group[0].index: CompiledStages(group, backend) for group in groups}


def _maps_tensors(stage: Transform) -> bool:
    kind: type = type(stage)
    return (
        stage.time_behavior is TimeBehavior.POINTWISE
        and owner(kind, "_chunk_kernel") is Transform
        and bool(stage.in_keys)
    )

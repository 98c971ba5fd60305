"""The immediate stages of a planned rollout, which run in each step since the next one needs them.

A stage with an :class:`~tdx.core.transforms.kernels.ArrayKernel` whose input is an array of the
env, or the result of another such stage, runs on NumPy arrays and writes its result into the
memory of the whole chunk. Any other stage runs on the dict of a step, or on TensorDicts.

Without array kernels a rollout of Pendulum with six stages and a small policy takes 1.25 times as
long, env and policy included (``python -m tests.benchmarks.forms``).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any
from weakref import WeakSet

import numpy as np
import torch
from tensordict import TensorDictBase
from torch import Tensor

from tdx.core.chain import StageForms
from tdx.core.envs.failures import with_stage
from tdx.core.planned.columns import as_tensordict, flatten
from tdx.core.transforms import Transform
from tdx.core.transforms.callable_transform import CallableTransform
from tdx.core.transforms.kernels import (
    ArrayForm,
    ArrayKernel,
    Columns,
    DictStep,
    implements_together,
)
from tdx.foundation.array_files import Array
from tdx.foundation.errors import EnvError
from tdx.foundation.keys import NestedKey, format_key, normalize_key

_Values = list[Any]
Append = Callable[[Any], None]


class ImmediateStages:
    """Runs the immediate stages along with the env, and keeps what they write.

    Args:
        stages: The immediate stages, in order.
        batch_size: Batch size of the env, ``[*B]``.
        device: Device of the env.
        on_dicts: True if each of them runs on a dict of root entries.
        reads: Keys that the policy reads.
        deferred: The deferred stages, which may read what the immediate ones write.
        outputs: Keys of the outputs of the env with its chain.

    Attributes:
        arrays: Arrays of the current step by key. The loop puts those of the env there.
        wanted: Keys of the env of which the policy or a stage without an array kernel needs
            tensors.
    """

    def __init__(
        self,
        stages: Sequence[StageForms],
        batch_size: torch.Size,
        device: torch.device,
        on_dicts: bool,
        reads: Sequence[NestedKey] = (),
        deferred: Sequence[StageForms] = (),
        outputs: Collection[NestedKey] = (),
    ) -> None:
        self.stages = tuple(stages)
        self._batch_size, self._device = batch_size, device
        self._on_dicts, self._policy_reads = on_dicts, tuple(reads)
        self._read_outputs = [key for key in reads if key in outputs]
        self.reads = frozenset((*reads, *(key for stage in stages for key in stage.reads or ())))
        self._deferred = tuple(deferred)
        self._kept = {forms.index: self._keys_to_keep(forms) for forms in self.stages}
        self._kernels: dict[int, list[_ArrayCall]] = {}
        self.clear()

    def _keys_to_keep(self, forms: StageForms) -> tuple[NestedKey, ...]:
        """Return the keys that a stage writes, except those overwritten before they are read."""
        kept = []
        for key in forms.writes or ():
            overwrites = [
                stage.index
                for stage in self.stages
                if stage.index > forms.index and key in (stage.writes or ())
            ]
            end = min(overwrites, default=None)
            if end is None or any(
                forms.index < stage.index < end and key in (stage.reads or ())
                for stage in self._deferred
            ):
                kept.append(key)
        return tuple(kept)

    def clear(self) -> None:
        """Forget everything written so far, after :meth:`finish`."""
        self.finish()
        self._steps: dict[int, dict[NestedKey, _Values]] = {
            forms.index: {key: [] for key in self._kept[forms.index]} for forms in self.stages
        }
        self._resets: dict[int, dict[NestedKey, _Values]] = {
            forms.index: {} for forms in self.stages
        }
        self.arrays: dict[NestedKey, Array] = {}
        self._kernels = {}
        self._build_calls()

    def begin(self, array_forms: Mapping[NestedKey, ArrayForm], length: int) -> None:
        """Prepare for a chunk; ``array_forms`` are those of the entries in :attr:`arrays`."""
        known = dict(array_forms)
        for forms in self.stages if self._on_dicts else ():
            kernels = _array_kernels(forms, known)
            overwritten = tuple(known) if forms.writes is None else forms.writes
            for key in (*forms.drops, *overwritten):
                known.pop(key, None)
            if kernels is not None:
                keys = zip(forms.stage.in_keys, forms.stage.out_keys, strict=True)
                calls = [
                    _ArrayCall(kernel, pair, length)
                    for pair, kernel in zip(keys, kernels, strict=True)
                ]
                self._kernels[forms.index] = calls
                known.update({call.out_key: call.kernel.form for call in calls})
        self._build_calls()
        self._load()

    def _build_calls(self) -> None:
        """Make the flat list for the step loop: what to call, and where to append its results."""
        calls: list[tuple[StageForms, _ArrayRows | DictStep | None, _Appends]] = []
        # From the last stage to the first, because the result of an array kernel becomes a tensor
        # only if the policy or a later stage without such a kernel reads it.
        wanted = set(self._policy_reads)
        for forms in reversed(self.stages):
            if forms.index in self._kernels:
                for call in reversed(self._kernels[forms.index]):
                    calls.append((forms, call.rows(call.out_key in wanted), ()))
                    wanted.discard(call.out_key)
                continue
            kept = self._steps[forms.index].items()
            appends = [(key, values.append) for key, values in kept]
            calls.append((forms, forms.dict_step, appends))
            wanted.difference_update(forms.writes or ())
            wanted.update(forms.reads or (), forms.root)
        self._calls, self.wanted = calls[::-1], frozenset(wanted)

    def _load(self) -> None:
        for calls in self._kernels.values():
            for call in calls:
                call.kernel.load()

    def finish(self) -> None:
        """Return the state of array kernels to their stages; call it after the last step."""
        for calls in self._kernels.values():
            for call in calls:
                call.kernel.store()

    def step(
        self, root: Mapping[NestedKey, Any], fields: dict[NestedKey, Any]
    ) -> dict[NestedKey, Any]:
        """Run the stages on one step: the env's output ``fields`` is written to, and returned."""
        if not self._on_dicts:
            return self._step_tensordict(root, fields)
        forms, arrays = None, self.arrays
        try:
            for forms, call, appends in self._calls:  # noqa: B007 - the handler names it
                if type(call) is tuple:
                    # Here and not in a method: a call costs as much as one of the operations.
                    run, in_key, out_key, views, tensors = call
                    out = next(views)
                    run(arrays[in_key], out)
                    arrays[out_key] = out
                    if tensors is not None:
                        fields[out_key] = next(tensors)
                    continue
                call(root, fields)  # type: ignore[misc, operator, arg-type]
                for key, append in appends:
                    append(fields[key])
        except Exception as error:
            assert forms is not None
            failure = with_stage(error, forms.index, forms.name)
            raise failure from failure.__cause__
        return fields

    def _step_tensordict(
        self, root: Mapping[NestedKey, Any], fields: dict[NestedKey, Any]
    ) -> dict[NestedKey, Any]:
        given = as_tensordict(root, self._batch_size, self._device)
        output = as_tensordict(fields, self._batch_size, self._device)
        for forms in self.stages:
            before = set(flatten(output)) if forms.is_opaque else set()
            output = self._call_hook(forms, forms.stage._step, given, output)
            written = flatten(output)
            kept = self._steps[forms.index]
            if forms.is_opaque:
                warn_of_undeclared(forms, written.keys() - before)
            for key in written if forms.is_opaque else kept:
                kept.setdefault(key, []).append(written[key])
        return flatten(output)

    @staticmethod
    def _call_hook(
        forms: StageForms,
        hook: Callable[..., Any],
        given: TensorDictBase,
        output: TensorDictBase,
    ) -> TensorDictBase:
        try:
            result: TensorDictBase = hook(given, output)
        except Exception as error:
            failure = with_stage(error, forms.index, forms.name)
            raise failure from failure.__cause__
        return result

    def reset(
        self,
        root: Mapping[NestedKey, Any],
        fields: dict[NestedKey, Any],
        masks: Mapping[NestedKey, Tensor],
    ) -> dict[NestedKey, Any]:
        """Run the stages on one reset of some rows; return their output by key.

        It has zeros for outputs that the policy reads and the reset does not write.
        """
        self.finish()
        given = as_tensordict({**root, **masks}, self._batch_size, self._device)
        output: TensorDictBase = as_tensordict(fields, self._batch_size, self._device)
        for forms in self.stages:
            output = self._call_hook(forms, forms.stage._reset, given, output)
            written = flatten(output)
            kept = self._resets[forms.index]
            for key in written if forms.is_opaque else forms.writes or ():
                if key in written:
                    kept.setdefault(key, []).append(written[key])
        self._load()
        after = flatten(output)
        for key in self._read_outputs:
            if key in root and key not in after:
                after[key] = torch.zeros_like(root[key])
        return after

    def columns(self, steps: int, resets: int) -> tuple[dict[int, Columns], dict[int, Columns]]:
        """Return what each stage wrote in the first steps and resets, by its index and key."""
        columns = _stack(self._steps, steps)
        for index, calls in self._kernels.items():
            kept = self._kept[index]
            columns[index] |= {
                call.out_key: torch.from_numpy(call.block[:steps])
                for call in calls
                if call.out_key in kept and steps
            }
        return columns, _stack(self._resets, resets)


def _array_kernels(
    forms: StageForms, array_forms: Mapping[NestedKey, ArrayForm]
) -> list[ArrayKernel] | None:
    """Return the kernel of each key pair of a stage; ``None`` if one has no form for arrays."""
    stage, hooks = forms.stage, ("_step", "_call", "make_dict_step", "_apply_transform")
    if not implements_together(type(stage), "make_array_kernel", hooks):
        return None
    if tuple(stage.in_keys) != forms.reads or tuple(stage.out_keys) != forms.writes:
        return None
    known, kernels = dict(array_forms), []
    for in_key, out_key in zip(stage.in_keys, stage.out_keys, strict=True):
        kernel = stage.make_array_kernel(in_key, known[in_key]) if in_key in known else None
        if kernel is None:
            return None
        known[out_key] = kernel.form
        kernels.append(kernel)
    return kernels


_ArrayRows = tuple[
    Callable[[Array, Array], None], NestedKey, NestedKey, Iterator[Array], Iterator[Tensor] | None
]
"""What maps an array, from and to which key, and the memory for its results step by step."""
_Appends = Sequence[tuple[NestedKey, Append]]


class _ArrayCall:
    """An array kernel with the memory for its results in a chunk."""

    def __init__(self, kernel: ArrayKernel, keys: tuple[NestedKey, NestedKey], length: int) -> None:
        self.kernel = kernel
        self.in_key, self.out_key = keys
        self.block: Array = np.empty((length, *kernel.form.shape), kernel.form.dtype)

    def rows(self, as_tensors: bool) -> _ArrayRows:
        """Return what a step needs, from the first one on, with tensors if they are needed."""
        tensors = iter_rows(torch.from_numpy(self.block)) if as_tensors else None
        return self.kernel.run, self.in_key, self.out_key, iter(self.block), tensors


def iter_rows(column: Tensor) -> Iterator[Tensor]:
    """Iterate over a column ``[T, ...]`` by step, in blocks of which each is split at once."""
    for start in range(0, len(column), _SPLIT):
        yield from column[start : start + _SPLIT].unbind(0)


_SPLIT = 256


_WARNED: WeakSet[Transform] = WeakSet()


def warn_of_undeclared(forms: StageForms, added: Collection[NestedKey]) -> None:
    """Warn once about a stage that writes entries that its specs do not declare.

    A plain function has no specs and is skipped.
    """
    stage = forms.stage
    if not added or isinstance(stage, CallableTransform) or stage in _WARNED:
        return
    env = stage.parent
    if env is None:
        return
    declared = stage.transform_output_spec(env.output_spec)
    known = {normalize_key(key) for part in declared.values() for key in part.keys(True, True)}
    undeclared = sorted(format_key(key) for key in added if key not in known)
    if undeclared:
        _WARNED.add(stage)
        warnings.warn(
            f"stage {forms.index} ({forms.name}) writes {', '.join(undeclared)}, which its "
            "specs do not declare; everything up to it runs step by step",
            UserWarning,
            stacklevel=2,
        )


def _stack(kept: dict[int, dict[NestedKey, _Values]], count: int) -> dict[int, Columns]:
    return {
        index: {key: _column(values, count) for key, values in columns.items() if values and count}
        for index, columns in kept.items()
    }


def _column(values: _Values, count: int) -> Tensor:
    if len(values) < count or any(value.shape != values[0].shape for value in values):
        raise EnvError(
            "the steps of this rollout differ in shape or keys and cannot be one block",
            hint="pass planned=False to the env and return_contiguous=False to rollout",
        )
    return torch.stack(values[:count])

"""Stages that run in each step, while the env is stepped: on dicts, or by their hooks."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any
from weakref import WeakSet

import torch
from tensordict import TensorDictBase
from torch import Tensor

from tdx.core.capabilities import PlannedStage, step_form_inplace, with_stage
from tdx.core.planned.columns import as_tensordict, flatten
from tdx.core.transforms import Transform
from tdx.core.transforms.callable_transform import CallableTransform
from tdx.core.transforms.chunk import Columns
from tdx.errors import EnvError
from tdx.keys import NestedKey, format_key, normalize_key

_Values = list[Any]


class ImmediateProgram:
    """Runs the immediate stages along with the env, and keeps what they write.

    Args:
        stages: The immediate stages, in order.
        batch_size: Batch size of the env, ``[*B]``.
        device: Device of the env.
        on_dicts: True if each of them runs on a dict of root entries.
        reads: Keys that the policy reads.
        deferred: The deferred stages, which may read what the immediate ones write.
    """

    def __init__(
        self,
        stages: Sequence[PlannedStage],
        batch_size: torch.Size,
        device: torch.device,
        on_dicts: bool,
        reads: Sequence[NestedKey] = (),
        deferred: Sequence[PlannedStage] = (),
    ) -> None:
        self.stages = tuple(stages)
        self._batch_size, self._device = batch_size, device
        self._on_dicts = on_dicts
        self.reads = frozenset((*reads, *(key for each in stages for key in each.reads or ())))
        self._deferred = tuple(deferred)
        self._kept = {planned.index: self._keys_to_keep(planned) for planned in self.stages}
        self.clear()

    def _keys_to_keep(self, planned: PlannedStage) -> tuple[NestedKey, ...]:
        """Return the keys that a stage writes, except those overwritten before they are read."""
        kept = []
        for key in planned.writes or ():
            overwrites = [
                each.index
                for each in self.stages
                if each.index > planned.index and key in (each.writes or ())
            ]
            end = min(overwrites, default=None)
            if end is None or any(
                planned.index < each.index < end and key in (each.reads or ())
                for each in self._deferred
            ):
                kept.append(key)
        return tuple(kept)

    def clear(self) -> None:
        """Forget everything written so far."""
        self._steps: dict[int, dict[NestedKey, _Values]] = {
            planned.index: {key: [] for key in self._kept[planned.index]} for planned in self.stages
        }
        self._resets: dict[int, dict[NestedKey, _Values]] = {
            planned.index: {} for planned in self.stages
        }
        # Flat for the step loop: the function to call, and where to append what it writes.
        self._calls = [
            (
                planned,
                step_form_inplace(planned),
                [(key, kept.append) for key, kept in self._steps[planned.index].items()],
            )
            for planned in self.stages
        ]

    def step(
        self, root: Mapping[NestedKey, Any], fields: dict[NestedKey, Any]
    ) -> dict[NestedKey, Any]:
        """Run the stages on one step.

        Args:
            root: Input of the step, by key.
            fields: Output of the env, by key; written to.

        Returns:
            The output after these stages, by key.
        """
        if not self._on_dicts:
            return self._step_tensordict(root, fields)
        planned = None
        try:
            for planned, step_form, keep in self._calls:  # noqa: B007 - the handler names it
                step_form(root, fields)  # type: ignore[misc, arg-type]
                for key, append in keep:
                    append(fields[key])
        except Exception as error:
            assert planned is not None
            failure = with_stage(error, planned)
            raise failure from failure.__cause__
        return fields

    def _step_tensordict(
        self, root: Mapping[NestedKey, Any], fields: dict[NestedKey, Any]
    ) -> dict[NestedKey, Any]:
        given = as_tensordict(root, self._batch_size, self._device)
        output = as_tensordict(fields, self._batch_size, self._device)
        for planned in self.stages:
            before = set(flatten(output)) if planned.is_opaque else set()
            output = self._call_hook(planned, planned.stage._step, given, output)
            written = flatten(output)
            kept = self._steps[planned.index]
            if planned.is_opaque:
                warn_of_undeclared(planned, written.keys() - before)
            for key in written if planned.is_opaque else kept:
                kept.setdefault(key, []).append(written[key])
        return flatten(output)

    @staticmethod
    def _call_hook(
        planned: PlannedStage,
        hook: Callable[..., Any],
        given: TensorDictBase,
        output: TensorDictBase,
    ) -> TensorDictBase:
        try:
            result: TensorDictBase = hook(given, output)
        except Exception as error:
            failure = with_stage(error, planned)
            raise failure from failure.__cause__
        return result

    def reset(
        self,
        root: Mapping[NestedKey, Any],
        fields: dict[NestedKey, Any],
        masks: Mapping[NestedKey, Tensor],
    ) -> dict[NestedKey, Any]:
        """Run the stages on one reset of some rows.

        Args:
            root: Entries of the rows before the reset, by key.
            fields: Output of the env's reset, by key.
            masks: Reset masks by key.

        Returns:
            The output after these stages, by key.
        """
        given = as_tensordict({**root, **masks}, self._batch_size, self._device)
        output: TensorDictBase = as_tensordict(fields, self._batch_size, self._device)
        for planned in self.stages:
            output = self._call_hook(planned, planned.stage._reset, given, output)
            written = flatten(output)
            kept = self._resets[planned.index]
            for key in written if planned.is_opaque else planned.writes or ():
                if key in written:
                    kept.setdefault(key, []).append(written[key])
        return flatten(output)

    def columns(self, steps: int, resets: int) -> tuple[dict[int, Columns], dict[int, Columns]]:
        """Return what each stage wrote in the first steps and resets, by its index and key.

        Raises:
            EnvError: A stage wrote an entry in some of them only.
        """
        return _stack(self._steps, steps), _stack(self._resets, resets)


_WARNED: WeakSet[Transform] = WeakSet()


def warn_of_undeclared(planned: PlannedStage, added: Collection[NestedKey]) -> None:
    """Warn once about a stage that writes entries that its specs do not declare.

    Args:
        planned: The stage. A plain function has no specs and is skipped.
        added: Entries that did not exist before the stage.
    """
    stage = planned.stage
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
            f"stage {planned.index} ({planned.name}) writes {', '.join(undeclared)}, which its "
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

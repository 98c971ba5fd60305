"""The stages that run step by step, while the env is stepped: on dicts, or by their hooks."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any
from weakref import WeakSet

import torch
from tensordict import TensorDictBase
from torch import Tensor

from tdx.core.plan.forms import StageForm, defines
from tdx.core.planned.columns import as_tensordict, leaves_of
from tdx.core.planned.deferred import located
from tdx.core.transforms import Transform
from tdx.core.transforms.callable_transform import CallableTransform
from tdx.core.transforms.chunk import Columns
from tdx.core.transforms.pointwise import DictStep
from tdx.errors import EnvError
from tdx.keys import NestedKey, format_key, normal_key

_Rows = list[Any]


class NowProgram:
    """Runs some stages along with the env, and keeps what they write.

    Args:
        forms: those stages, in order.
        batch_size: the env's, ``[*B]``.
        device: the env's.
        on_dicts: whether each of them can run on a dict of root entries.
        reads: what a policy reads of what comes out.
        waiting: the stages that run later, and may read what these write.
    """

    def __init__(
        self,
        forms: Sequence[StageForm],
        batch_size: torch.Size,
        device: torch.device,
        on_dicts: bool,
        reads: Sequence[NestedKey] = (),
        waiting: Sequence[StageForm] = (),
    ) -> None:
        self.forms = tuple(forms)
        self._batch_size, self._device = batch_size, device
        self._on_dicts = on_dicts
        self.reads = frozenset((*reads, *(key for form in forms for key in form.reads or ())))
        self._waiting = tuple(waiting)
        self._kept = {form.index: self._kept_of(form) for form in self.forms}
        self.forget()

    def _kept_of(self, form: StageForm) -> tuple[NestedKey, ...]:
        """What is kept of what a stage writes: all but what is overwritten before it is read."""
        kept = []
        for key in form.writes or ():
            later = (each.index for each in self.forms if each.index > form.index)
            again = [at for at in later if key in (self._by_index(at).writes or ())]
            end = min(again, default=None)
            if end is None or any(
                form.index < each.index < end and key in (each.reads or ())
                for each in self._waiting
            ):
                kept.append(key)
        return tuple(kept)

    def _by_index(self, index: int) -> StageForm:
        return next(form for form in self.forms if form.index == index)

    def forget(self) -> None:
        """Keep nothing of what was written so far."""
        self._steps: dict[int, dict[NestedKey, _Rows]] = {
            form.index: {key: [] for key in self._kept[form.index]} for form in self.forms
        }
        self._resets: dict[int, dict[NestedKey, _Rows]] = {form.index: {} for form in self.forms}
        # Flat: what to call, and where to append what it wrote.
        self._calls = [
            (
                form,
                owned_row(form),
                [(key, kept.append) for key, kept in self._steps[form.index].items()],
            )
            for form in self.forms
        ]

    def step(
        self, root: Mapping[NestedKey, Any], fields: dict[NestedKey, Any]
    ) -> dict[NestedKey, Any]:
        """Run the stages on one step.

        Args:
            root: the step's input, by key.
            fields: the env's output, by key; written to.

        Returns:
            what is known of the output after the chain.
        """
        if not self._on_dicts:
            return self._step_tensordict(root, fields)
        form = None
        try:
            for form, row, keep in self._calls:  # noqa: B007 - the handler names it
                row(root, fields)  # type: ignore[misc, arg-type]
                for key, append in keep:
                    append(fields[key])
        except Exception as error:
            assert form is not None
            made = located(error, form)
            raise made from made.__cause__
        return fields

    def _step_tensordict(
        self, root: Mapping[NestedKey, Any], fields: dict[NestedKey, Any]
    ) -> dict[NestedKey, Any]:
        given = as_tensordict(root, self._batch_size, self._device)
        made = as_tensordict(fields, self._batch_size, self._device)
        for form in self.forms:
            before = set(leaves_of(made)) if form.is_opaque else set()
            made = self._hooked(form, form.stage._step, given, made)
            written = leaves_of(made)
            kept = self._steps[form.index]
            if form.is_opaque:
                warn_of_undeclared(form, written.keys() - before)
            for key in written if form.is_opaque else kept:
                kept.setdefault(key, []).append(written[key])
        return leaves_of(made)

    @staticmethod
    def _hooked(
        form: StageForm, hook: Callable[..., Any], given: TensorDictBase, made: TensorDictBase
    ) -> TensorDictBase:
        try:
            result: TensorDictBase = hook(given, made)
        except Exception as error:
            made_of = located(error, form)
            raise made_of from made_of.__cause__
        return result

    def reset(
        self,
        root: Mapping[NestedKey, Any],
        fields: dict[NestedKey, Any],
        masks: Mapping[NestedKey, Tensor],
    ) -> dict[NestedKey, Any]:
        """Run the stages on one reset of some rows.

        Args:
            root: what the rows hold before it, by key.
            fields: what the env's reset returned.
            masks: which rows are reset, by the mask's key.

        Returns:
            what is known of the reset's output after the chain.
        """
        given = as_tensordict({**root, **masks}, self._batch_size, self._device)
        made: TensorDictBase = as_tensordict(fields, self._batch_size, self._device)
        for form in self.forms:
            made = self._hooked(form, form.stage._reset, given, made)
            written = leaves_of(made)
            kept = self._resets[form.index]
            for key in written if form.is_opaque else form.writes or ():
                if key in written:
                    kept.setdefault(key, []).append(written[key])
        return leaves_of(made)

    def columns(self, steps: int, resets: int) -> tuple[dict[int, Columns], dict[int, Columns]]:
        """What each stage wrote in the first steps and resets, by its index and key.

        Raises:
            EnvError: a stage wrote an entry in some of them only.
        """
        return _stacked(self._steps, steps), _stacked(self._resets, resets)


def owned_row(form: StageForm) -> DictStep | None:
    """The stage over a step's dict, where nobody else holds on to what is in it."""
    kind: type = type(form.stage)
    if form.row is not None and defines(kind, "_step_dict_inplace", ("_step_dict",)):
        return form.stage._step_dict_inplace()
    return form.row


def warn_of_undeclared(form: StageForm, added: Collection[NestedKey]) -> None:
    """Say once of a stage that it writes entries that its specs do not have.

    Args:
        form: the stage; a plain function, which has no specs, is passed over.
        added: the entries that were not there before it.
    """
    if not added or isinstance(form.stage, CallableTransform) or form.stage in _WARNED:
        return
    env = form.stage.parent
    if env is None:
        return
    declared = form.stage.transform_output_spec(env.output_spec)
    known = {normal_key(key) for part in declared.values() for key in part.keys(True, True)}
    odd = sorted(format_key(key) for key in added if key not in known)
    if odd:
        _WARNED.add(form.stage)
        warnings.warn(
            f"stage {form.index} ({form.name}) writes {', '.join(odd)}, which its specs do not "
            "declare; everything up to it runs step by step",
            UserWarning,
            stacklevel=2,
        )


_WARNED: WeakSet[Transform] = WeakSet()


def _stacked(kept: dict[int, dict[NestedKey, _Rows]], count: int) -> dict[int, Columns]:
    return {
        index: {key: _column(rows, count) for key, rows in columns.items() if rows and count}
        for index, columns in kept.items()
    }


def _column(rows: _Rows, count: int) -> Tensor:
    if len(rows) < count or any(row.shape != rows[0].shape for row in rows):
        raise EnvError(
            "the steps of this rollout differ in shape or keys and cannot be one block",
            hint="pass planned=False to the env and return_contiguous=False to rollout",
        )
    return torch.stack(rows[:count])

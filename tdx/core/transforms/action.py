"""The base class of transforms whose in-keys are actions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeGuard

import torch
from tensordict import TensorDictBase
from torch import Tensor

from tdx.core.transforms.chunk import TimeForm
from tdx.core.transforms.key_pairs import key_list, missing_key, output_keys
from tdx.core.transforms.transform import Entries, RowStep, Transform
from tdx.keys import NestedKey, parent_key
from tdx.specs import BoundedContinuous, Composite, TensorSpec


class ActionTransform(Transform):
    """Maps actions on their way into the env, and those in stored data the other way.

    What an env returns holds no action, so there its in-keys are not looked for.

    Args:
        in_keys_inv: the env's actions; ``action`` by default.
        out_keys_inv: their names outside; ``in_keys_inv`` by default.
        in_keys: the actions in stored data; ``in_keys_inv`` by default.
        out_keys: where the mapped ones are written; the in-keys by default.
    """

    def __init__(
        self,
        in_keys_inv: Sequence[NestedKey] | None = None,
        out_keys_inv: Sequence[NestedKey] | None = None,
        in_keys: Sequence[NestedKey] | None = None,
        out_keys: Sequence[NestedKey] | None = None,
    ) -> None:
        in_keys_inv = key_list(["action"] if in_keys_inv is None else in_keys_inv, "in_keys_inv")
        if in_keys is None:
            in_keys = in_keys_inv or ["action"]
        super().__init__(in_keys, out_keys, in_keys_inv, out_keys_inv)

    def _call(self, next_tensordict: TensorDictBase) -> TensorDictBase:
        """The env's output, which holds no action, as it is."""
        return next_tensordict

    def _row_step(self) -> RowStep | None:
        def step(tensordict: Entries, fields: dict[str, Any]) -> None:
            return None

        return step

    def _time_form(self) -> TimeForm | None:
        return TimeForm(lambda chunk: None)

    def _check_in_keys(self, output_spec: Composite) -> None:
        """Stored data holds the in-keys, an env's output does not."""

    def transform_output_spec(self, output_spec: Composite) -> Composite:
        """The output spec, which stays as it is."""
        return output_spec


def action_leaf(input_spec: Composite, key: NestedKey) -> TensorSpec:
    """The spec of one of the env's actions.

    Raises:
        KeyNotFoundError: the env has no such action.
    """
    actions = input_spec["full_action_spec"]
    spec: TensorSpec | None = actions.get(key, None)
    if spec is None:
        known = output_keys(Composite(full_action_spec=actions))
        raise missing_key(key, known, "the action spec at this stage")
    return spec


def batch_dims_of(spec: Composite, key: NestedKey) -> int:
    """The number of batch dims of an entry: those of the innermost group that it is in."""
    parent = parent_key(key)
    return spec[parent].ndim if parent else spec.ndim


def has_range(spec: TensorSpec) -> TypeGuard[BoundedContinuous]:
    """Return True if an action is continuous, with a finite and non-empty range everywhere.

    The width and the middle of a range must be finite in the action's dtype as well.
    """
    if not isinstance(spec, BoundedContinuous):
        return False
    finite = (spec.high - spec.low).isfinite() & (spec.high + spec.low).isfinite()
    return bool((finite & (spec.low < spec.high)).all())


def shared_rows(low: Tensor, high: Tensor, batch_dims: int) -> tuple[Tensor, Tensor]:
    """The bounds of one row where all rows of the batch have the same, so that they broadcast."""
    first = tuple(end[(0,) * batch_dims] for end in (low, high))
    same = all(
        torch.equal(row.expand_as(end), end) for row, end in zip(first, (low, high), strict=True)
    )
    return (first[0], first[1]) if same else (low, high)

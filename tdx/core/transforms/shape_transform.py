"""Transforms that rearrange the dims of tensors and leave their values alone."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence

import torch
from tensordict import TensorDictBase
from tensordict.nn import dispatch
from torch import Tensor

from tdx.core.transforms.time_behaviour import TimeBehaviour
from tdx.core.transforms.transform import ObservationTransform
from tdx.errors import ArgumentError, SpecError
from tdx.keys import NestedKey
from tdx.specs import Binary, Composite, MultiOneHot, OneHot, TensorSpec
from tdx.tensordicts import read


class ShapeTransform(ObservationTransform):
    """Rearranges dims, counted from the end or after the batch dims.

    A subclass implements :meth:`_apply_transform`, :meth:`_check_features` and, if there is a way
    back, :meth:`_inv_apply_transform`. What the outside gives on the way in has the shape that
    the map forward gives to what the env takes.
    """

    time_behaviour = TimeBehaviour.POINTWISE

    def __init__(
        self,
        in_keys: Sequence[NestedKey] | None = None,
        out_keys: Sequence[NestedKey] | None = None,
        in_keys_inv: Sequence[NestedKey] | None = None,
        out_keys_inv: Sequence[NestedKey] | None = None,
    ) -> None:
        super().__init__(in_keys, out_keys, in_keys_inv, out_keys_inv)
        # The dims before the features: those of the env's batch, or of the stored data.
        self._leading = 0

    @abstractmethod
    def _check_features(self, shape: torch.Size) -> None:
        """Raise where dims that are not of the batch cannot be rearranged.

        Args:
            shape: the shape without the batch dims.

        Raises:
            ArgumentError: they do not fit.
        """

    def _transform_spec(self, spec: TensorSpec) -> TensorSpec:
        self._check_features(spec.shape[self._leading :])
        if isinstance(spec, (OneHot, MultiOneHot)) and _moves_columns(spec, self._apply_transform):
            example = self._apply_transform(spec.zero())
            return Binary(shape=example.shape, dtype=example.dtype, device=example.device)
        return viewed_spec(spec, self._apply_transform)

    def _inv_transform_spec(self, spec: TensorSpec) -> TensorSpec:
        self._check_features(spec.shape[self._leading :])
        if isinstance(spec, (OneHot, MultiOneHot)) and _moves_columns(spec, self._apply_transform):
            raise SpecError(
                f"the env takes a {type(spec).__name__}, whose last dim must stay",
                hint="leave that dim alone, or leave the key out of in_keys_inv",
            )
        return viewed_spec(spec, self._apply_transform)

    def _mapped(self, spec: Composite) -> Composite:
        self._leading = len(spec.shape)
        return super()._mapped(spec)

    def _inverse_mapped(self, spec: Composite) -> Composite:
        self._leading = len(spec.shape)
        return super()._inverse_mapped(spec)

    @dispatch(source="in_keys", dest="out_keys")
    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Rearrange stored data in place.

        Args:
            tensordict: of any shape; its batch dims stay where they are.

        Raises:
            ArgumentError: an entry has too few dims beyond them.
        """
        of_env, self._leading = self._leading, tensordict.ndim
        try:
            for key in self.in_keys:
                value = read(tensordict, key)
                if value is not None:
                    self._check_features(value.shape[self._leading :])
            return super().forward(tensordict)
        finally:
            self._leading = of_env


def viewed_spec(spec: TensorSpec, view: Callable[[Tensor], Tensor]) -> TensorSpec:
    """The spec of what a view of a tensor of this spec holds.

    Args:
        spec: of what goes in.
        view: a function that moves or leaves out elements, and changes none.
    """
    return spec.apply_view(view)


def _moves_columns(spec: TensorSpec, view: Callable[[Tensor], Tensor]) -> bool:
    """Whether the last dim, over which a row is one-hot, does not stay the last and whole."""
    columns = torch.arange(spec.shape[-1])
    after = view(columns.expand(spec.shape))
    same_size = after.shape[-1:] == columns.shape
    return not (same_size and torch.equal(after, columns.expand(after.shape)))


def require_some_keys(
    name: str, in_keys: Sequence[NestedKey] | None, in_keys_inv: Sequence[NestedKey] | None
) -> Sequence[NestedKey]:
    """The in-keys of a transform that has no default ones; none where there are inverse ones.

    Raises:
        ArgumentError: there are neither.
    """
    if in_keys is None and in_keys_inv is None:
        raise ArgumentError(
            f"{name} needs in_keys or in_keys_inv", hint='for example in_keys=["observation"]'
        )
    return [] if in_keys is None else in_keys


def checked_dim(value: object, name: str, allow_positive: bool) -> int:
    """A dim, which is negative unless others are allowed.

    Args:
        value: the argument.
        name: its name, for messages.
        allow_positive: whether it may be zero or positive.

    Raises:
        ArgumentError: it is no integer, or not negative.
    """
    if isinstance(value, bool) or not isinstance(value, int):
        raise ArgumentError(
            f"{name} must be an integer, got {value!r}", hint="for example -1 for the last dim"
        )
    if value >= 0 and not allow_positive:
        raise ArgumentError(
            f"{name} must be negative, got {value}",
            hint="count from the end, so that batch dims don't matter, or pass "
            "allow_positive_dim=True to count from the first dim after them",
        )
    return value

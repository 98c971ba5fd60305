"""Base class of transforms that rearrange dims and leave values unchanged."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence

import torch
from tensordict import TensorDictBase
from tensordict.nn import dispatch
from torch import Tensor

from tdx.core.transforms.families import ObservationTransform
from tdx.core.transforms.pointwise import TimeBehaviour
from tdx.errors import SpecError
from tdx.keys import NestedKey
from tdx.specs import Binary, Composite, MultiOneHot, OneHot, TensorSpec
from tdx.tensordicts import read


class ShapeTransform(ObservationTransform):
    """Rearranges dims, counted from the end or after the batch dims.

    A subclass implements :meth:`_apply_transform`, :meth:`_check_features` and, if it has an
    inverse, :meth:`_inv_apply_transform`. The policy's input has the shape of the forward map of
    the env's input.
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
        # Number of dims before the features: the batch dims of the env or of the stored data.
        self._leading = 0

    @abstractmethod
    def _check_features(self, shape: torch.Size) -> None:
        """Check that the dims after the batch dims can be rearranged.

        Args:
            shape: Shape without the batch dims.

        Raises:
            ArgumentError: The dims do not fit.
        """

    def _transform_spec(self, spec: TensorSpec) -> TensorSpec:
        self._check_features(spec.shape[self._leading :])
        if isinstance(spec, (OneHot, MultiOneHot)) and _moves_columns(spec, self._apply_transform):
            example = self._apply_transform(spec.zero())
            return Binary(shape=example.shape, dtype=example.dtype, device=example.device)
        return spec.apply_view(self._apply_transform)

    def _inv_transform_spec(self, spec: TensorSpec) -> TensorSpec:
        self._check_features(spec.shape[self._leading :])
        if isinstance(spec, (OneHot, MultiOneHot)) and _moves_columns(spec, self._apply_transform):
            raise SpecError(
                f"the env takes a {type(spec).__name__}, whose last dim must not change",
                hint="choose other dims, or remove the key from in_keys_inv",
            )
        return spec.apply_view(self._apply_transform)

    def _map_spec(self, spec: Composite) -> Composite:
        self._leading = len(spec.shape)
        return super()._map_spec(spec)

    def _map_inverse_spec(self, spec: Composite) -> Composite:
        self._leading = len(spec.shape)
        return super()._map_inverse_spec(spec)

    @dispatch(source="in_keys", dest="out_keys")
    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Rearrange stored data in place.

        Args:
            tensordict: Data of any shape; its batch dims keep their positions.

        Raises:
            ArgumentError: An entry has too few dims after the batch dims.
        """
        env_leading, self._leading = self._leading, tensordict.ndim
        try:
            for key in self.in_keys:
                value = read(tensordict, key)
                if value is not None:
                    self._check_features(value.shape[self._leading :])
            return super().forward(tensordict)
        finally:
            self._leading = env_leading


def _moves_columns(spec: TensorSpec, view: Callable[[Tensor], Tensor]) -> bool:
    """Return True if a view moves or splits the last dim, over which a row is one-hot."""
    columns = torch.arange(spec.shape[-1])
    after = view(columns.expand(spec.shape))
    same_size = after.shape[-1:] == columns.shape
    return not (same_size and torch.equal(after, columns.expand(after.shape)))

"""Cast entries from one dtype to another."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from tensordict import TensorDictBase
from torch import Tensor

from tdx.core.transforms import TimeBehavior, Transform
from tdx.core.transforms.spec_maps import require_keys
from tdx.foundation.errors import ArgumentError, ChainError, Where
from tdx.foundation.keys import NestedKey, format_key, normalize_key, split_key
from tdx.foundation.text import dtype_name
from tdx.specs import Composite, TensorSpec

OUTPUT_PARTS = ("full_observation_spec", "full_reward_spec")
INPUT_PARTS = ("full_action_spec", "full_state_spec")
FLAGS = {"done", "terminated", "truncated", "_reset"}


class DTypeCastTransform(Transform):
    """Cast the output of an env from ``dtype_in`` to ``dtype_out``, and its input back.

    Args:
        dtype_in: Dtype of the env.
        dtype_out: Dtype of the output.
        in_keys: Entries to cast; all observations and rewards of ``dtype_in`` by default.
        out_keys: Keys to write; the in-keys by default.
        in_keys_inv: Inputs of the env to cast back; by default all actions and states of
            ``dtype_in``, or none if ``in_keys`` are given.
        out_keys_inv: Keys that the policy writes for them; ``in_keys_inv`` by default.

    Raises:
        ArgumentError: A dtype is invalid, ``out_keys`` are given without ``in_keys``, or the
            numbers of keys differ.
        ChainError: A given entry does not have ``dtype_in`` (when its specs are computed).

    Example:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> from tdx import DTypeCastTransform
        >>> cast = DTypeCastTransform(torch.uint8, torch.float32, in_keys=["pixels"])
        >>> cast(TensorDict(pixels=torch.zeros(2, dtype=torch.uint8)))["pixels"]
        tensor([0., 0.])
    """

    _is_verified = True

    time_behavior = TimeBehavior.POINTWISE

    def __init__(
        self,
        dtype_in: torch.dtype,
        dtype_out: torch.dtype,
        in_keys: Sequence[NestedKey] | None = None,
        out_keys: Sequence[NestedKey] | None = None,
        in_keys_inv: Sequence[NestedKey] | None = None,
        out_keys_inv: Sequence[NestedKey] | None = None,
    ) -> None:
        _check_order(in_keys, out_keys, "in_keys", "out_keys")
        _check_order(in_keys_inv, out_keys_inv, "in_keys_inv", "out_keys_inv")
        super().__init__(in_keys, out_keys, in_keys_inv, out_keys_inv)
        self.dtype_in = _check_dtype(dtype_in, "dtype_in")
        self.dtype_out = _check_dtype(dtype_out, "dtype_out")
        self._finds_keys = in_keys is None
        self._finds_inverse_keys = in_keys is None and in_keys_inv is None
        # States found in the specs may be missing in a step.
        self.set_missing_tolerance(self._finds_keys)

    def _on_keys_assigned(self) -> None:
        self._finds_keys = self._finds_inverse_keys = False

    def _apply_transform(self, tensor: Tensor) -> Tensor:
        return tensor.to(self.dtype_out)

    def _inv_apply_transform(self, tensor: Tensor) -> Tensor:
        return tensor.to(self.dtype_in)

    def _transform_spec(self, spec: TensorSpec) -> TensorSpec:
        cast: TensorSpec = spec.to(self.dtype_out)
        return cast

    _inv_transform_spec = _transform_spec

    def _bind(self, input_spec: Composite, output_spec: Composite) -> None:
        if self._finds_keys:
            keys = self._find_keys(output_spec, OUTPUT_PARTS)
            self._set_keys(keys, keys)
        else:
            self._check_dtypes(output_spec, self.in_keys)
        if self._finds_inverse_keys:
            keys = self._find_keys(input_spec, INPUT_PARTS)
            self._set_inverse_keys(keys, keys)
        else:
            require_keys(input_spec, self.in_keys_inv, "the env's input at this stage")
            self._check_dtypes(input_spec, self.in_keys_inv)

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Cast stored data in place: the in-keys, or all entries of ``dtype_in`` except flags.

        Args:
            tensordict: Data of any shape ``[*B]`` or ``[*B, T]``.
        """
        if not self._finds_keys:
            return super().forward(tensordict)
        return _cast_all(tensordict, self.dtype_in, self.dtype_out)

    def inv(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Cast data back in a shallow copy ``[*B]``.

        Casts ``in_keys_inv`` or the inputs of the env; without both, all entries of
        ``dtype_out`` except flags.
        """
        if self._finds_inverse_keys and not self._in_keys_inv and not self._in_keys:
            return _cast_all(tensordict.clone(recurse=False), self.dtype_out, self.dtype_in)
        return super().inv(tensordict)

    def _find_keys(self, spec: Composite, parts: Sequence[str]) -> list[NestedKey]:
        return [
            normalize_key(key)
            for part in parts
            for key, leaf in spec[part].items(True, True)
            if leaf.dtype is self.dtype_in
        ]

    def _check_dtypes(self, spec: Composite, keys: Sequence[NestedKey]) -> None:
        for key in keys:
            for part in spec.values():
                leaf = part.get(key, None)
                if leaf is not None and leaf.dtype is not self.dtype_in:
                    name = dtype_name(self.dtype_in)
                    raise ChainError(
                        f"{type(self).__name__} casts {name}, but {format_key(key)!r} is "
                        f"{leaf.dtype}",
                        hint=f"remove the keys, to cast exactly the {name} entries",
                        where=Where(key=key),
                    )

    def _key_repr(self) -> str:
        names = ("in_keys", "out_keys", "in_keys_inv", "out_keys_inv")
        return ", ".join(f"{name}={getattr(self, name)}" for name in names if getattr(self, name))

    def __repr__(self) -> str:
        given = [str(self.dtype_in), str(self.dtype_out), self._key_repr()]
        return f"{type(self).__name__}({', '.join(filter(None, given))})"


def _cast_all(
    tensordict: TensorDictBase, dtype_in: torch.dtype, dtype_out: torch.dtype
) -> TensorDictBase:
    """Cast all entries of one dtype except flags, in place."""
    for key, value in list(tensordict.items(True, True)):
        is_tensor = isinstance(value, Tensor) and value.dtype is dtype_in
        if is_tensor and split_key(key)[-1] not in FLAGS:
            tensordict.set(key, value.to(dtype_out))
    return tensordict


def _check_dtype(dtype: torch.dtype, name: str) -> torch.dtype:
    if isinstance(dtype, torch.dtype):
        return dtype
    raise ArgumentError(
        f"{name} must be a torch.dtype, got {dtype!r}", hint=f"for example {name}=torch.float32"
    )


def _check_order(
    in_keys: Sequence[NestedKey] | None,
    out_keys: Sequence[NestedKey] | None,
    in_name: str,
    out_name: str,
) -> None:
    if in_keys is None and out_keys is not None:
        raise ArgumentError(
            f"{out_name} are given without {in_name}",
            hint=f"give {in_name} in the same order",
        )

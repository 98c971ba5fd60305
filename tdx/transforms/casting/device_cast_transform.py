"""Move data to another device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor

from tdx.core.envs.env_specs import available_device
from tdx.core.transforms import TimeBehavior, Transform
from tdx.core.transforms.kernels import Chunk, ChunkKernel, Columns
from tdx.core.transforms.spec_maps import map_leaves, unlocked_copy
from tdx.foundation.keys import NestedKey
from tdx.specs import Composite, TensorSpec


class DeviceCastTransform(Transform):
    """Move the output of an env to a device, and its input back to the env's own device.

    The transformed env reports the new device, while the base env continues on its own. With keys,
    only those entries are moved. If the entries are then on two devices, the env and its
    TensorDicts report no device, and rollouts run step by step. Put transforms that keep state of
    a moved entry, such as ``CatFrames``, before this one.

    Args:
        device: Device of the output.
        orig_device: Device of the env. ``None``: taken from the env; without an env, inverse
            calls do not move data.
        in_keys: Entries to move; all by default, or none if ``in_keys_inv`` are given.
        out_keys: Keys to write; the in-keys by default.
        in_keys_inv: Entries to move back in inverse calls; all by default, or none if
            ``in_keys`` are given.
        out_keys_inv: Keys to read for them; ``in_keys_inv`` by default.

    Raises:
        DeviceError: The device does not exist.
        ArgumentError: The numbers of keys differ.
        KeyNotFoundError: The env lacks a key, or the stored data an in-key.

    Example:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> from tdx import DeviceCastTransform
        >>> DeviceCastTransform("cpu")(TensorDict(observation=torch.zeros(3))).device
        device(type='cpu')
    """

    _is_verified = True

    time_behavior = TimeBehavior.POINTWISE
    _requires_keys = True

    def __init__(
        self,
        device: torch.device | str | int,
        orig_device: torch.device | str | int | None = None,
        *,
        in_keys: Sequence[NestedKey] | None = None,
        out_keys: Sequence[NestedKey] | None = None,
        in_keys_inv: Sequence[NestedKey] | None = None,
        out_keys_inv: Sequence[NestedKey] | None = None,
    ) -> None:
        super().__init__(in_keys, out_keys, in_keys_inv, out_keys_inv)
        self.device = available_device(device)
        self._given_device = None if orig_device is None else available_device(orig_device)
        self._inner_device = self._given_device
        self._moves_all = in_keys is None and in_keys_inv is None

    @property
    def orig_device(self) -> torch.device | None:
        """Device of the env; ``None`` if it is unknown."""
        if self._given_device is None:
            self._bind_in_env()
        return self._inner_device

    @property
    def invertible(self) -> bool:
        """True if inverse calls move data."""
        return self._moves_all or bool(self._inverse_pairs)

    # Data

    def _apply_transform(self, value: Any) -> Any:
        return value.to(self.device)

    def _inv_apply_transform(self, value: Any) -> Any:
        return value if self._inner_device is None else value.to(self._inner_device)

    def _call(self, next_tensordict: TensorDictBase) -> TensorDictBase:
        if self._moves_all:
            return next_tensordict.to(self.device)
        return self._move_keys(next_tensordict, self._pairs, self.device)

    def _reset(
        self, tensordict: TensorDictBase | None, tensordict_reset: TensorDictBase
    ) -> TensorDictBase:
        if self._moves_all:
            return tensordict_reset.to(self.device)
        # A reset returns no rewards.
        return self._move_keys(tensordict_reset, self._pairs, self.device, skip_missing=True)

    def _inv_call(self, tensordict: TensorDictBase) -> TensorDictBase:
        device = self._inner_device
        if not self._moves_all:
            pairs = [(outer, inner) for inner, outer in self._inverse_pairs]
            return self._move_keys(tensordict, pairs, device, skip_missing=True)
        return tensordict if device is None else tensordict.to(device)

    def _reset_env_preprocess(self, tensordict: TensorDictBase) -> TensorDictBase:
        return self._inv_call(tensordict)

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Move stored data to the device.

        Args:
            tensordict: Data of any shape ``[*B]`` or ``[*B, T]``. Without keys a moved copy is
                returned; with keys the data is written to, and may be on several devices.
        """
        if self._moves_all:
            return tensordict.to(self.device)
        return self._move_keys(tensordict, self._pairs, self.device)

    def _move_keys(
        self,
        tensordict: TensorDictBase,
        pairs: Sequence[tuple[NestedKey, NestedKey]],
        device: torch.device | None,
        skip_missing: bool = False,
    ) -> TensorDictBase:
        if device is None:
            return tensordict
        if tensordict.device not in (None, device):
            # It would move written entries back to its own device.
            tensordict.clear_device_()
        for source, target in pairs:
            value = tensordict.get(source, None)
            if isinstance(value, (Tensor, TensorDictBase)):
                tensordict.set(target, value.to(device))
            elif not (skip_missing or self._missing_tolerance):
                raise self._missing_key(source, tensordict)
        return tensordict

    def make_chunk_kernel(self) -> ChunkKernel | None:
        if self._moves_all:
            return ChunkKernel(self._run_chunk if self.changes_batch else lambda chunk: None)
        return None if self.changes_batch else super().make_chunk_kernel()

    def _run_chunk(self, chunk: Chunk) -> None:
        """Move each entry once, for any number of steps."""
        for name in ("steps", "resets", "masks", "first"):
            columns: Columns = getattr(chunk, name)
            setattr(chunk, name, {key: value.to(self.device) for key, value in columns.items()})

    @property
    def changes_batch(self) -> bool:  # type: ignore[override]
        return self._inner_device not in (None, self.device)

    def to_outer_batch(self, tensordict: TensorDictBase) -> TensorDictBase:
        return tensordict.to(self.device) if self._moves_all else tensordict

    def to_inner_batch(self, tensordict: TensorDictBase) -> TensorDictBase:
        return self._reset_env_preprocess(tensordict.clone(recurse=False))

    # Specs

    def _bind(self, input_spec: Composite, output_spec: Composite) -> None:
        if self._given_device is None:
            self._inner_device = output_spec.device

    def _to_device(self, spec: TensorSpec) -> TensorSpec:
        return spec.to(self.device)

    def _map_spec(self, spec: Any) -> Any:
        if self._moves_all or not isinstance(spec, Composite):
            return self._to_device(spec)
        return map_leaves(spec, self._pairs, self._to_device)

    def _map_inverse_spec(self, spec: Any) -> Any:
        if self._moves_all or not isinstance(spec, Composite):
            return self._to_device(spec)
        return map_leaves(spec, self._inverse_pairs, self._to_device, rename=True)

    def _without_device(self, spec: Composite) -> Composite:
        return unlocked_copy(spec).clear_device_() if self.changes_batch else spec

    def transform_output_spec(self, output_spec: Composite) -> Composite:
        """Return the output spec with its entries, or those of the in-keys, on the device."""
        if self._moves_all:
            return unlocked_copy(output_spec).to(self.device)
        return super().transform_output_spec(self._without_device(output_spec))

    def transform_input_spec(self, input_spec: Composite) -> Composite:
        """Return the input spec with its entries, or those of the inverse keys, on the device."""
        if self._moves_all:
            return unlocked_copy(input_spec).to(self.device)
        return super().transform_input_spec(self._without_device(input_spec))

    def transform_env_device(self, device: torch.device | None) -> torch.device | None:
        """Return the device of the transformed env; ``None`` if its entries are on two."""
        return self.device if self._moves_all or device == self.device else None

    def __repr__(self) -> str:
        inner = "" if self._given_device is None else f", orig_device='{self._given_device}'"
        return f"DeviceCastTransform('{self.device}'{inner})"

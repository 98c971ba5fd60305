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
from tdx.errors import ChainError
from tdx.keys import NestedKey
from tdx.specs import Composite


class DeviceCastTransform(Transform):
    """Move the output of an env to a device, and its input back to the env's own device.

    The transformed env reports the new device, while the base env continues on its own. An env
    is on one device, so keys can be selected for stored data only.

    Args:
        device: Device of the output.
        orig_device: Device of the env. ``None``: taken from the env; without an env, inverse
            calls do not move data.
        in_keys: Entries of stored data to move; all by default.
        out_keys: Keys to write; the in-keys by default.
        in_keys_inv: Entries to move back in inverse calls; all by default, or none if
            ``in_keys`` are given.
        out_keys_inv: Keys to read for them; ``in_keys_inv`` by default.

    Raises:
        DeviceError: The device does not exist.
        ArgumentError: The numbers of keys differ.
        ChainError: Keys are given and the env is on another device (when its specs are computed).

    Example:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> from tdx import DeviceCastTransform
        >>> DeviceCastTransform("cpu")(TensorDict(observation=torch.zeros(3))).device
        device(type='cpu')
    """

    _is_verified = True

    time_behavior = TimeBehavior.POINTWISE

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
        return next_tensordict.to(self.device) if self._moves_all else next_tensordict

    def _reset(
        self, tensordict: TensorDictBase | None, tensordict_reset: TensorDictBase
    ) -> TensorDictBase:
        return self._call(tensordict_reset)

    def _inv_call(self, tensordict: TensorDictBase) -> TensorDictBase:
        if not self._moves_all:
            return self._move_keys(
                tensordict, self._inverse_pairs, self._inner_device, inverse=True
            )
        return tensordict if self._inner_device is None else tensordict.to(self._inner_device)

    def _reset_env_preprocess(self, tensordict: TensorDictBase) -> TensorDictBase:
        return self._inv_call(tensordict) if self._moves_all else tensordict

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Move stored data to the device.

        Args:
            tensordict: Data of any shape ``[*B]`` or ``[*B, T]``. Without keys a moved copy is
                returned; with keys the data is written to, and may be on several devices.
        """
        if self._moves_all:
            return tensordict.to(self.device)
        return self._move_keys(tensordict, self._pairs, self.device, inverse=False)

    def _move_keys(
        self,
        tensordict: TensorDictBase,
        pairs: Sequence[tuple[NestedKey, NestedKey]],
        device: torch.device | None,
        inverse: bool,
    ) -> TensorDictBase:
        if device is None:
            return tensordict
        if tensordict.device not in (None, device):
            # It would move written entries back to its own device.
            tensordict.clear_device_()
        for inner, outer in pairs:
            source, target = (outer, inner) if inverse else (inner, outer)
            value = tensordict.get(source, None)
            if isinstance(value, (Tensor, TensorDictBase)):
                tensordict.set(target, value.to(device))
            elif not self._missing_tolerance:
                raise self._missing_key(source, tensordict)
        return tensordict

    def _chunk_kernel(self) -> ChunkKernel | None:
        return ChunkKernel(self._run_chunk if self._changes_batch else _skip_chunk)

    def _run_chunk(self, chunk: Chunk) -> None:
        """Move each entry once, for any number of steps."""
        for name in ("steps", "resets", "masks", "first"):
            columns: Columns = getattr(chunk, name)
            setattr(chunk, name, {key: value.to(self.device) for key, value in columns.items()})

    @property
    def _changes_batch(self) -> bool:  # type: ignore[override]
        return self._moves_all and self._inner_device not in (None, self.device)

    def _to_outer_batch(self, tensordict: TensorDictBase) -> TensorDictBase:
        return tensordict.to(self.device) if self._moves_all else tensordict

    def _to_inner_batch(self, tensordict: TensorDictBase) -> TensorDictBase:
        return self._reset_env_preprocess(tensordict)

    # Specs

    def _bind(self, input_spec: Composite, output_spec: Composite) -> None:
        found = output_spec.device
        if self._given_device is None:
            self._inner_device = found
        if not self._moves_all and found not in (None, self.device):
            raise ChainError(
                f"an env is on one device, but only some keys would move from {found} to "
                f"{self.device}",
                hint="remove the keys, to move all entries",
            )

    def _check_in_keys(self, output_spec: Composite) -> None:
        """Accept any spec: keys select entries of stored data only."""

    def _check_inverse_keys(self, input_spec: Composite) -> None:
        """Accept any spec: keys select entries of stored data only."""

    def _on_device(self, spec: Composite) -> Composite:
        if not self._moves_all:
            return spec
        result = spec.clone()
        result.unlock_()
        moved: Composite = result.to(self.device)
        return moved

    def transform_output_spec(self, output_spec: Composite) -> Composite:
        """Return the output spec on the device."""
        return self._on_device(output_spec)

    def transform_input_spec(self, input_spec: Composite) -> Composite:
        """Return the input spec on the device."""
        return self._on_device(input_spec)

    def transform_env_device(self, device: torch.device) -> torch.device:
        """Return the device of the transformed env."""
        return self.device if self._moves_all else device

    def __repr__(self) -> str:
        inner = "" if self._given_device is None else f", orig_device='{self._given_device}'"
        return f"DeviceCastTransform('{self.device}'{inner})"


def _skip_chunk(chunk: Chunk) -> None:
    """Do nothing, since the data is on the device already."""

"""Move data to another device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor

from tdx.core.envs.env_specs import available_device
from tdx.core.transforms import TimeBehaviour, Transform
from tdx.core.transforms.chunk import Chunk, Columns, TimeForm
from tdx.errors import ChainError
from tdx.keys import NestedKey
from tdx.specs import Composite


class DeviceCastTransform(Transform):
    """Move what the env returns to a device, and what it is given back to the env's own.

    The env then is on that device for all that is outside, while it goes on working on its own.
    An env is on one device, so a choice of keys is for stored data alone.

    Args:
        device: the device outside.
        orig_device: the device inside; the env's by default. Without an env and without it, data
            on its way in stays where it is.
        in_keys: the entries of stored data that are moved; all by default.
        out_keys: the keys written; the in-keys by default.
        in_keys_inv: the entries moved back on the way in; all by default, or none where
            ``in_keys`` are given.
        out_keys_inv: their names outside; ``in_keys_inv`` by default.

    Raises:
        DeviceError: this machine has no such device.
        ArgumentError: the numbers of keys differ.
        ChainError: keys are given, and the env is on another device (when its specs are
            computed).

    Example:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> from tdx import DeviceCastTransform
        >>> DeviceCastTransform("cpu")(TensorDict(observation=torch.zeros(3))).device
        device(type='cpu')
    """

    _is_verified = True

    time_behaviour = TimeBehaviour.POINTWISE

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
        self.orig_device = None if orig_device is None else available_device(orig_device)
        self._inner_device = self.orig_device
        self._moves_all = in_keys is None and in_keys_inv is None

    @property
    def invertible(self) -> bool:
        """Whether anything is moved on the way in."""
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
            return self._keyed(tensordict, self._inverse_pairs, self._inner_device, inverse=True)
        return tensordict if self._inner_device is None else tensordict.to(self._inner_device)

    def _reset_env_preprocess(self, tensordict: TensorDictBase) -> TensorDictBase:
        return self._inv_call(tensordict) if self._moves_all else tensordict

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Stored data on the device; a single device is named by the result unless keys are given.

        Args:
            tensordict: of any shape ``[*B]`` or ``[*B, T]``; left as it is where all of it is
                moved, and written to where keys are given.
        """
        if self._moves_all:
            return tensordict.to(self.device)
        return self._keyed(tensordict, self._pairs, self.device, inverse=False)

    def _keyed(
        self,
        tensordict: TensorDictBase,
        pairs: Sequence[tuple[NestedKey, NestedKey]],
        device: torch.device | None,
        inverse: bool,
    ) -> TensorDictBase:
        if device is None:
            return tensordict
        if tensordict.device not in (None, device):
            # It would move whatever is written to it back to its own device.
            tensordict.clear_device_()
        for inner, outer in pairs:
            source, target = (outer, inner) if inverse else (inner, outer)
            value = tensordict.get(source, None)
            if isinstance(value, (Tensor, TensorDictBase)):
                tensordict.set(target, value.to(device))
            elif not self._missing_tolerance:
                raise self._missing(source, tensordict)
        return tensordict

    def _time_form(self) -> TimeForm | None:
        return TimeForm(self._move_chunk if self._changes_batch else _nothing)

    def _move_chunk(self, chunk: Chunk) -> None:
        """One transfer an entry, whatever the number of steps."""
        for name in ("steps", "resets", "masks", "first"):
            columns: Columns = getattr(chunk, name)
            setattr(chunk, name, {key: value.to(self.device) for key, value in columns.items()})

    # Those after this stage see another device than those before.

    @property
    def _changes_batch(self) -> bool:  # type: ignore[override]
        return self._moves_all and self._inner_device not in (None, self.device)

    def _outward(self, tensordict: TensorDictBase) -> TensorDictBase:
        return tensordict.to(self.device) if self._moves_all else tensordict

    def _inward(self, tensordict: TensorDictBase) -> TensorDictBase:
        return self._reset_env_preprocess(tensordict)

    # Specs

    def _bind(self, input_spec: Composite, output_spec: Composite) -> None:
        found = output_spec.device
        if self.orig_device is None:
            self._inner_device = found
        if not self._moves_all and found not in (None, self.device):
            raise ChainError(
                f"an env is on one device, and only some keys would move from {found} to "
                f"{self.device}",
                hint="leave the keys out, which moves all of them",
            )

    def _check_in_keys(self, output_spec: Composite) -> None:
        """Which keys are there matters to stored data alone."""

    def _check_inverse_keys(self, input_spec: Composite) -> None:
        """Which keys are there matters to stored data alone."""

    def _on_device(self, spec: Composite) -> Composite:
        if not self._moves_all:
            return spec
        result = spec.clone()
        result.unlock_()
        moved: Composite = result.to(self.device)
        return moved

    def transform_output_spec(self, output_spec: Composite) -> Composite:
        """The output spec on the device."""
        return self._on_device(output_spec)

    def transform_input_spec(self, input_spec: Composite) -> Composite:
        """The input spec on the device."""
        return self._on_device(input_spec)

    def transform_env_device(self, device: torch.device) -> torch.device:
        """The device outside."""
        return self.device if self._moves_all else device

    def __repr__(self) -> str:
        inner = "" if self.orig_device is None else f", orig_device='{self.orig_device}'"
        return f"DeviceCastTransform('{self.device}'{inner})"


def _nothing(chunk: Chunk) -> None:
    """What a move to where all lies already does."""

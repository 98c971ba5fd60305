"""Stop at values that are not finite."""

from __future__ import annotations

import torch
from tensordict import TensorDictBase
from torch import Tensor

from tdx.core.transforms import TimeBehavior, Transform
from tdx.foundation.errors import SpecError, Where
from tdx.foundation.keys import format_key, normalize_key


class FiniteTensorDictCheck(Transform):
    """Raise an error if the env's output, or stored data, contains NaN or infinity.

    It checks all entries that upstream stages and the env write, in each step.

    Raises:
        SpecError: A value is not finite (in a step, a reset or a call).

    Example:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> from tdx import FiniteTensorDictCheck
        >>> FiniteTensorDictCheck()(TensorDict(reward=torch.ones(1)))["reward"]
        tensor([1.])
    """

    why_not_exported = "it raises an error that depends on the values"
    _is_verified = True

    time_behavior = TimeBehavior.CONTROL

    def __init__(self) -> None:
        super().__init__(in_keys=[])

    def _call(self, next_tensordict: TensorDictBase) -> TensorDictBase:
        values = {
            key: value
            for key, value in next_tensordict.items(True, True)
            if isinstance(value, Tensor) and (value.is_floating_point() or value.is_complex())
        }
        flags = [value.isfinite().all() for value in values.values()]
        # The host waits for an accelerator once, and not for each entry.
        devices = {flag.device for flag in flags}
        is_one_read = len(devices) == 1 and devices.pop().type != "cpu"
        if is_one_read and bool(torch.stack(flags).all()):
            return next_tensordict
        for (key, value), flag in zip(values.items(), flags, strict=True):
            if not bool(flag):
                count = int((~value.isfinite()).sum())
                raise SpecError(
                    f"{count} of {value.numel()} values of {format_key(normalize_key(key))!r} are "
                    "not finite",
                    hint="find the step and the stage with: tdx inspect values",
                    where=Where(key=normalize_key(key), transform="FiniteTensorDictCheck"),
                )
        return next_tensordict

    def _reset(
        self, tensordict: TensorDictBase | None, tensordict_reset: TensorDictBase
    ) -> TensorDictBase:
        return self._call(tensordict_reset)

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Check stored data; it is returned unchanged.

        Raises:
            SpecError: A value is not finite.
        """
        return self._call(tensordict)

    def __repr__(self) -> str:
        return "FiniteTensorDictCheck()"

"""An env as a module: its place on a device, and its end."""

from __future__ import annotations

from typing import Any, Self

import torch
from tensordict import TensorDictBase

from tdx.core.envs.devices import present_device
from tdx.core.envs.env_specs import EnvSpecs
from tdx.specs import Composite
from tdx.tensordicts import new_tensordict


class EnvModule(EnvSpecs):
    """An env's specs with what a module can do: move, close, show itself."""

    def __init__(
        self,
        *,
        device: torch.device | str | int | None = None,
        batch_size: torch.Size | tuple[int, ...] | list[int] | None = None,
    ) -> None:
        super().__init__(device=device, batch_size=batch_size)
        self.is_closed = False

    def fake_tensordict(self) -> TensorDictBase:
        """Zeros for every key of a rollout step, in the declared shapes, dtypes and device."""
        observation, done = self.full_observation_spec.zero(), self.full_done_spec.zero()
        following = new_tensordict({}, self.batch_size, self.device)
        for part in (observation.clone(), self.full_reward_spec.zero(), done.clone()):
            following.update(part)
        root = new_tensordict({}, self.batch_size, self.device)
        # The parts merge into each other where they share a nested key, so ``next`` comes first.
        for part in (observation, done, self.full_state_spec.zero(), self.full_action_spec.zero()):
            root.update(part)
        root.set("next", following)
        return root

    def to(self, *args: Any, **kwargs: Any) -> Self:
        """Move the env to a device; takes what ``nn.Module.to`` takes.

        Raises:
            DeviceError: the device is not there.
        """
        device = torch._C._nn._parse_to(*args, **kwargs)[0]
        if device is not None:
            device = present_device(device)
        super().to(*args, **kwargs)
        if device is not None:
            self._move_to(device)
        return self

    def cpu(self) -> Self:
        """Move the env to the CPU."""
        return self.to("cpu")

    def cuda(self, device: torch.device | int | None = None) -> Self:
        """Move the env to a CUDA device, the current one by default."""
        return self.to(torch.device("cuda") if device is None else torch.device(device))

    def _move_to(self, device: torch.device) -> None:
        if device != self._device:
            self._move(device)

    def _move(self, device: torch.device) -> None:
        output_spec, input_spec = self.output_spec, self.input_spec
        self._device = device
        self._output_spec = self._moved(output_spec)
        self._input_spec = self._moved(input_spec)
        self._forget_specs()

    def _moved(self, spec: Composite) -> Composite:
        moved = spec.clone()
        moved.unlock_()
        return moved.to(self._device).lock_()

    def close(self) -> None:
        """Release what the env holds; it cannot be used afterwards."""
        self.is_closed = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}(batch_size={torch.Size(self.batch_size)}, device={self.device})"
        )

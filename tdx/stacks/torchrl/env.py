"""An env of tdx as an env of TorchRL."""

from __future__ import annotations

from typing import Any, Self

import torch
from tensordict import TensorDictBase
from torchrl.envs import EnvBase as TorchRLEnvBase

from tdx.envs import EnvBase
from tdx.foundation.errors import ArgumentError
from tdx.foundation.keys import normalize_key
from tdx.specs import Categorical, MultiCategorical
from tdx.stacks.torchrl.specs import convert_to_torchrl


class TdxEnv(TorchRLEnvBase):  # type: ignore[misc]
    """A TorchRL env that runs an env of tdx; see :func:`tdx.to_torchrl`."""

    def __init__(self, env: EnvBase) -> None:
        if not isinstance(env, EnvBase):
            raise ArgumentError(
                f"to_torchrl takes an env of tdx, got {type(env).__name__}",
                hint="create one first, such as tdx.GymEnv('Pendulum-v1')",
            )
        super().__init__(device=env.device, batch_size=env.batch_size, allow_done_after_reset=True)
        self._batch_locked = env.batch_locked
        self.env = env
        self._read_specs()
        self.is_closed = False

    def _read_specs(self) -> None:
        input_spec, output_spec = self.env.input_spec.clone(), self.env.output_spec.clone()
        actions = input_spec.unlock_()["full_action_spec"]
        for key, spec in list(actions.items(True, True)):
            actions.set(key, _without_singleton(spec))
        self._squeezed_actions = [
            (key, spec.shape) for key, spec in actions.items(True, True) if spec.shape[-1:] == (1,)
        ]
        self.__dict__["_input_spec"] = convert_to_torchrl(input_spec)
        self.__dict__["_output_spec"] = convert_to_torchrl(output_spec.unlock_())

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        env = self.env
        # Values of an earlier step would take precedence over the result.
        given = tensordict.exclude(*(("next",) if env.steps_some_rows else ("next", "_step")))
        for key, shape in self._squeezed_actions:
            value = given.get(key)
            if value.ndim < len(shape):
                given.set(key, value.reshape(shape))
        return env.step(given).get("next")

    def reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
        """Start new episodes; see ``torchrl.envs.EnvBase.reset``.

        Transforms of tdx may read the entries of the rows that are not reset, so a partial reset
        gets all of them.
        """
        kwargs.pop("select_reset_only", None)
        return super().reset(tensordict, **kwargs)

    def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: object) -> TensorDictBase:
        env = self.env
        if tensordict is None:
            return env.reset(**kwargs)
        result = env.reset(tensordict.clone(recurse=False), **kwargs)
        declared = {*env.observation_keys, *env.done_keys}
        given = (normalize_key(key) for key in tensordict.keys(True, True))
        return result.exclude(*(key for key in given if key not in declared))

    def _set_seed(self, seed: int | None) -> None:
        self.env.set_seed(seed)

    def set_seed(self, seed: int | None = None, static_seed: bool = False) -> int | None:
        """Seed the env; the next seed counts up as in tdx, see ``tdx.EnvBase.set_seed``."""
        return self.env.set_seed(seed, static_seed=static_seed)

    def to(self, device: torch.device | str | int) -> Self:
        """Move the env of tdx, and with it this env, to a device."""
        self.env.to(device)
        if self.env.device != self.device:
            locked = self.is_spec_locked
            self._read_specs()
            self.__dict__["_device"] = self.env.device
            self.empty_cache()
            self.set_spec_lock_(locked)
        return self

    def close(self, *, raise_if_closed: bool = True) -> None:
        if not self.is_closed:
            self.env.close()
        super().close(raise_if_closed=raise_if_closed)

    def __del__(self) -> None:
        """Leave the env of tdx open: it belongs to the caller."""

    def __repr__(self) -> str:
        return f"TdxEnv({self.env})"


def _without_singleton(spec: object) -> object:
    """Describe a single variable without ``MultiCategorical``, whose draws TorchRL squeezes."""
    if type(spec) is not MultiCategorical or spec.shape[-1] != 1 or not spec.shape.numel():
        return spec
    counts = spec.nvec.unique()
    if counts.numel() != 1:
        return spec
    place: dict[str, Any] = {"shape": spec.shape, "device": spec.device, "dtype": spec.dtype}
    mask = None if spec.mask is None else spec.mask.unsqueeze(-2)
    return Categorical(int(counts), **place, mask=mask)

"""Policies over tensors, as policies over TensorDicts."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tensordict import TensorDictBase
from torch import Tensor, nn

from tdx.errors import ArgumentError
from tdx.keys import NestedKey, format_key, key_parts
from tdx.tensordicts import read

if TYPE_CHECKING:
    from tdx.envs.base.env_base import EnvBase

Policy = Callable[[TensorDictBase], TensorDictBase]

_OVER_TENSORDICTS = ("td", "tensordict")


def as_policy(policy: Any, env: EnvBase) -> Policy:
    """The policy itself, or a module over tensors such as ``nn.Linear`` made into one.

    Args:
        policy: any callable over a TensorDict; or a module over observations that returns the
            action.
        env: whose observations and action these are.
    """
    if not isinstance(policy, nn.Module) or hasattr(policy, "in_keys"):
        return policy
    names = _arguments(policy)
    by_name = {key_parts(key)[-1]: key for key in env.observation_keys}
    if names and all(name in by_name for name in names):
        return _OverTensors(policy, [by_name[name] for name in names], env.action_keys)
    if len(names) == 1 and names[0].startswith(_OVER_TENSORDICTS):
        return policy
    return _Tried(policy, names, env)


def _arguments(policy: nn.Module) -> list[str]:
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [
        name
        for name, parameter in inspect.signature(policy.forward).parameters.items()
        if parameter.kind in positional and parameter.default is inspect.Parameter.empty
    ]


class _OverTensors:
    """Reads the observations, writes the action."""

    def __init__(self, module: nn.Module, keys: list[NestedKey], outs: list[NestedKey]) -> None:
        self.module, self.keys, self.outs = module, keys, outs

    def __call__(self, tensordict: TensorDictBase) -> TensorDictBase:
        action = self.module(*(read(tensordict, key) for key in self.keys))
        if not isinstance(action, Tensor) or len(self.outs) != 1:
            listed = ", ".join(map(format_key, self.outs))
            raise ArgumentError(
                f"the policy returned {type(action).__name__}, the env takes {listed}",
                hint="give a TensorDictModule, which names its out_keys",
            )
        return tensordict.set(self.outs[0], action)


class _Tried:
    """Finds out in its first call whether a module takes the TensorDict or tensors."""

    def __init__(self, module: nn.Module, names: list[str], env: EnvBase) -> None:
        keys = env.observation_keys
        if len(names) == 1 and "observation" in keys:
            keys = ["observation"]
        self._over_tensors = _OverTensors(module, keys, env.action_keys)
        self._module = module
        self._decided: Policy | None = None

    def __call__(self, tensordict: TensorDictBase) -> TensorDictBase:
        if self._decided is not None:
            return self._decided(tensordict)
        result: Any = None
        try:
            result = self._module(tensordict)
            self._decided = self._module
        except (TypeError, AttributeError, ValueError):
            result = self._over_tensors(tensordict)
            self._decided = self._over_tensors
        return result

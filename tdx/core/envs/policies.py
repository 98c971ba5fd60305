"""Policies: modules over tensors, sequences of actions, and the check of what they write."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any, cast

import torch
from tensordict import TensorDictBase
from torch import Tensor, nn

from tdx.core.envs.env_base import EnvBase
from tdx.core.envs.rollout import Policy
from tdx.foundation.errors import ArgumentError
from tdx.foundation.keys import NestedKey, format_key, split_key
from tdx.foundation.tensordicts import new_tensordict, read

_OVER_TENSORDICTS = ("td", "tensordict")


def as_policy(policy: Any, env: EnvBase) -> Policy:
    """Return a policy over TensorDicts; wraps modules from observations to the action."""
    if isinstance(policy, ActionSequence):
        return lambda tensordict: policy.act(tensordict, env.action_key)
    if not isinstance(policy, nn.Module) or hasattr(policy, "in_keys"):
        return policy
    if is_public_class(type(policy), nn):
        return TensorPolicy(policy, _default_keys(env), env.action_keys)
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    names = [
        name
        for name, parameter in inspect.signature(policy.forward).parameters.items()
        if parameter.kind in positional and parameter.default is inspect.Parameter.empty
    ]
    by_name = {split_key(key)[-1]: key for key in env.observation_keys}
    if names and all(name in by_name for name in names):
        return TensorPolicy(policy, [by_name[name] for name in names], env.action_keys)
    if len(names) == 1 and names[0].startswith(_OVER_TENSORDICTS):
        return policy
    return _UndecidedPolicy(policy, names, env)


def is_public_class(kind: type, namespace: ModuleType | None) -> bool:
    """Return True if a library exports exactly this class, not a subclass of it.

    Example:
        >>> from torch import nn
        >>> class Mine(nn.Linear): ...
        >>> is_public_class(nn.Linear, nn), is_public_class(Mine, nn)
        (True, False)
    """
    return namespace is not None and getattr(namespace, kind.__name__, None) is kind


def _default_keys(env: EnvBase) -> list[NestedKey]:
    """Return the observations for a module whose arguments are not named after any."""
    keys = env.observation_keys
    return ["observation"] if "observation" in keys else keys


class TensorPolicy:
    """A module over tensors as a policy over TensorDicts."""

    def __init__(self, module: nn.Module, keys: list[NestedKey], outs: list[NestedKey]) -> None:
        self.module, self.keys, self.outs = module, keys, outs

    def __call__(self, tensordict: TensorDictBase) -> TensorDictBase:
        values = [read(tensordict, key) for key in self.keys]
        return tensordict.set(self.outs[0], self.action(values))

    def action(self, values: Sequence[Tensor]) -> Tensor:
        """Return the action for these observations."""
        action = self.module(*values)
        if not isinstance(action, Tensor) or len(self.outs) != 1:
            listed = ", ".join(map(format_key, self.outs))
            raise ArgumentError(
                f"the policy returned {type(action).__name__}, the env takes {listed}",
                hint="pass a TensorDictModule, which names its out_keys",
            )
        return action


class _UndecidedPolicy:
    """Finds out in its first call if a module takes the TensorDict or tensors."""

    def __init__(self, module: nn.Module, names: list[str], env: EnvBase) -> None:
        keys = _default_keys(env) if len(names) == 1 else env.observation_keys
        self._over_tensors = TensorPolicy(module, keys, env.action_keys)
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


class ActionSequence:
    """A policy that plays given actions one after another.

    A rollout starts with the first action; ``iter_rollout`` continues through its chunks.

    Args:
        actions: A tensor ``[*B, T, ...]`` for an env with one action key, or a TensorDict
            ``[*B, T]`` with all actions.

    Example:
        >>> import torch
        >>> from tdx import ActionSequence, GymEnv
        >>> push = ActionSequence(torch.linspace(-2.0, 2.0, 5).unsqueeze(-1))
        >>> GymEnv("Pendulum-v1").rollout(5, push)["action"].flatten()
        tensor([-2., -1.,  0.,  1.,  2.])
    """

    def __init__(self, actions: Tensor | TensorDictBase) -> None:
        if not isinstance(actions, (Tensor, TensorDictBase)):
            raise ArgumentError(
                f"actions must be a tensor or a TensorDict, got {type(actions).__name__}",
                hint="torch.stack the actions along a time dim",
            )
        self.actions = actions
        self.position = 0

    def rewind(self) -> None:
        """Start again with the first action."""
        self.position = 0

    def __call__(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Write the next action."""
        return self.act(tensordict, "action")

    def act(self, tensordict: TensorDictBase, key: NestedKey) -> TensorDictBase:
        """Write the next action.

        Args:
            tensordict: Where to write, ``[*B]``.
            key: Key of the action, if the actions are a tensor.

        Raises:
            ArgumentError: There are no more actions, or they have another batch size.
        """
        action = self._next(tensordict.batch_size, 1)[0]
        if isinstance(action, Tensor):
            return tensordict.set(key, action)
        return tensordict.update(action)

    @property
    def exhausted(self) -> ArgumentError:
        """The error to raise at the end of the actions."""
        return ArgumentError(
            f"the sequence holds {self.position} actions, and number {self.position + 1} is needed",
            hint="make fewer steps, or pass more actions",
        )

    def take(self, env: EnvBase, count: int) -> TensorDictBase:
        """Return at most ``count`` next actions as a TensorDict ``[T, *B]``, time first.

        Raises:
            ArgumentError: There are no more actions, or they have another batch size.
        """
        actions = self._next(env.batch_size, count)
        if isinstance(actions, TensorDictBase):
            return actions if env.device is None else actions.to(env.device)
        size = torch.Size((actions.shape[0], *env.batch_size))
        return new_tensordict({}, size, env.device).set(env.action_key, actions.to(env.device))

    def _next(self, batch_size: torch.Size, count: int) -> Any:
        """Return the next actions with time first, and advance the position."""
        dim, actions = len(batch_size), cast("Any", self.actions)
        if actions.shape[:dim] != batch_size or actions.ndim <= dim:
            raise ArgumentError(
                f"the actions have shape {tuple(actions.shape)}, the env has batch size "
                f"{tuple(batch_size)}",
                hint="pass actions of shape [*B, T, ...]",
            )
        start, held = self.position, actions.shape[dim]
        if start >= held:
            raise self.exhausted
        count = min(count, held - start)
        self.position += count
        index = (*[slice(None)] * dim, slice(start, start + count))
        taken = actions[index]
        if isinstance(taken, Tensor):
            return taken.movedim(dim, 0)
        return taken.permute(dim, *range(dim))


class ActionCheck:
    """Checks the actions of a policy against the action spec, before the env takes them.

    An action that lacks only the last dim of its spec, of size 1, gets it: what a network with
    ``squeeze(-1)`` returns has one reading.
    """

    def __init__(self, env: EnvBase) -> None:
        spec = env.full_action_spec
        self._expected = [
            (key, spec[key].shape, spec[key].dtype, spec[key].dtype.is_floating_point)
            for key in env.action_keys
            # Actions of unlike rows do not stack.
            if -1 not in spec[key].shape
        ]
        self.keys = [key for key, *_ in self._expected]

    @property
    def exact_form(self) -> tuple[torch.dtype | None, torch.Size | None]:
        """Dtype and shape of a single action that needs no check; ``None`` if there is no such."""
        if len(self._expected) != 1:
            return None, None
        _, shape, dtype, _ = self._expected[0]
        return dtype, shape

    def explain(self, get: Callable[[NestedKey], Any], error: Exception) -> Exception:
        """Return the error to raise if an env raised: NaN in the action, or its own error."""
        for key, _, _, floating in self._expected:
            action = get(key)
            if floating and isinstance(action, Tensor) and bool(action.isnan().any()):
                return nan_error(key)
        return error

    def __call__(
        self,
        get: Callable[[NestedKey], Any],
        put: Callable[[NestedKey, Tensor], object] | None = None,
    ) -> None:
        """Check the actions.

        ``get`` returns the entry of a key, or ``None``. Without ``put``, an action without its last
        dim is refused.
        """
        for key, shape, dtype, floating in self._expected:
            action = get(key)
            if type(action) is Tensor and action.dtype is dtype and action.shape == shape:
                continue
            if not isinstance(action, Tensor):
                if action is None:
                    raise ArgumentError(
                        f"the policy did not write {format_key(key)!r}",
                        hint="name the action's key in the policy's out_keys",
                    )
                raise ArgumentError(
                    f"the policy wrote {type(action).__name__} into {format_key(key)!r}",
                    hint="write a tensor of env.action_spec",
                )
            if put is not None and (*action.shape, 1) == shape:
                action = action.unsqueeze(-1)
                put(key, action)
            same_kind = action.is_floating_point() == floating
            if action.is_floating_point() and not floating:
                # Integers may be stored as floats.
                same_kind = action.device.type == "cpu" and torch.equal(action, action.round())
            if action.shape != shape or not same_kind:
                raise ArgumentError(
                    f"the policy wrote {format_key(key)!r} of shape {tuple(action.shape)} and "
                    f"{action.dtype}, the action spec says {tuple(shape)} and "
                    f"{'floats' if floating else 'integers'}",
                    hint="compare it with env.action_spec",
                )


def first_nan(actions: Tensor) -> int | None:
    """Return the first of the steps ``[T, *B, ...]`` with NaN in its actions, if there is one."""
    if not actions.is_floating_point() or not bool(actions.isnan().any()):
        return None
    return int(actions.isnan().reshape(len(actions), -1).any(-1).nonzero()[0])


def nan_error(key: NestedKey) -> ArgumentError:
    """Return the error for an action that is not a number."""
    return ArgumentError(
        f"the policy wrote NaN into {format_key(key)!r}",
        hint="check its input: the last step that iter_rollout yields",
    )

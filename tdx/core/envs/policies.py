"""Policies over tensors, as policies over TensorDicts."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from tensordict import TensorDictBase
from torch import Tensor, nn

from tdx.errors import ArgumentError
from tdx.keys import NestedKey, format_key, split_key
from tdx.tensordicts import new_tensordict, read

if TYPE_CHECKING:
    from tdx.core.envs.env_base import EnvBase

Policy = Callable[[TensorDictBase], TensorDictBase]

_OVER_TENSORDICTS = ("td", "tensordict")


def as_policy(policy: Any, env: EnvBase) -> Policy:
    """The policy itself, or a module over tensors such as ``nn.Linear`` made into one.

    Args:
        policy: any callable over a TensorDict; or a module over observations that returns the
            action.
        env: whose observations and action these are.
    """
    if isinstance(policy, ActionSequence):
        return lambda tensordict: policy.act(tensordict, env.action_key)
    if not isinstance(policy, nn.Module) or hasattr(policy, "in_keys"):
        return policy
    if type(policy).__module__.startswith("torch.nn."):
        return OverTensors(policy, _read_by(policy, env), env.action_keys)
    names = _arguments(policy)
    by_name = {split_key(key)[-1]: key for key in env.observation_keys}
    if names and all(name in by_name for name in names):
        return OverTensors(policy, [by_name[name] for name in names], env.action_keys)
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


def _read_by(module: nn.Module, env: EnvBase) -> list[NestedKey]:
    """The observations for a module of which no argument's name says which it takes."""
    keys = env.observation_keys
    return ["observation"] if "observation" in keys else keys


class OverTensors:
    """Reads the observations, writes the action.

    Args:
        module: takes the observations, returns the action.
        keys: the observations, in the order of the module's arguments.
        outs: the action's key.
    """

    def __init__(self, module: nn.Module, keys: list[NestedKey], outs: list[NestedKey]) -> None:
        self.module, self.keys, self.outs = module, keys, outs

    def __call__(self, tensordict: TensorDictBase) -> TensorDictBase:
        values = [read(tensordict, key) for key in self.keys]
        return tensordict.set(self.outs[0], self.action(values))

    def action(self, values: Sequence[Tensor]) -> Tensor:
        """The action for these observations.

        Raises:
            ArgumentError: the module returned no tensor, or the env takes several.
        """
        action = self.module(*values)
        if not isinstance(action, Tensor) or len(self.outs) != 1:
            listed = ", ".join(map(format_key, self.outs))
            raise ArgumentError(
                f"the policy returned {type(action).__name__}, the env takes {listed}",
                hint="give a TensorDictModule, which names its out_keys",
            )
        return action


class _Tried:
    """Finds out in its first call whether a module takes the TensorDict or tensors."""

    def __init__(self, module: nn.Module, names: list[str], env: EnvBase) -> None:
        keys = _read_by(module, env) if len(names) == 1 else env.observation_keys
        self._over_tensors = OverTensors(module, keys, env.action_keys)
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
    """A policy that looks at nothing and plays given actions one after another.

    A rollout begins with the first of them; ``iter_rollout`` goes on through its chunks.

    Args:
        actions: of an env with one action key a tensor ``[*B, T, ...]``; else a TensorDict
            ``[*B, T]`` with all of them.

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
                hint="torch.stack the actions along a dim of time",
            )
        self.actions = actions
        self.position = 0

    def rewind(self) -> None:
        """Begin with the first action again."""
        self.position = 0

    def __call__(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Write the next action.

        Args:
            tensordict: ``[*B]``.

        Raises:
            ArgumentError: there are no more, or they are not of this batch.
        """
        return self.act(tensordict, "action")

    def act(self, tensordict: TensorDictBase, key: NestedKey) -> TensorDictBase:
        """Write the next action.

        Args:
            tensordict: ``[*B]``.
            key: where to write it, where the actions are a tensor.

        Raises:
            ArgumentError: there are no more, or they are not of this batch.
        """
        row = self._rows(self.actions, tensordict.batch_size, 1)[0]
        if isinstance(row, Tensor):
            return tensordict.set(key, row)
        return tensordict.update(row)

    @property
    def used_up(self) -> ArgumentError:
        """What to raise where one more action is needed than there is."""
        return ArgumentError(
            f"the sequence holds {self.position} actions, and number {self.position + 1} is needed",
            hint="make fewer steps, or give more actions",
        )

    def taken(self, env: EnvBase, count: int) -> TensorDictBase:
        """The next actions as a TensorDict ``[count, *B]``, time first, or as many as there are.

        Raises:
            ArgumentError: there are none, or they are not of this env's batch.
        """
        rows = self._rows(self.actions, env.batch_size, count)
        if isinstance(rows, TensorDictBase):
            return rows.to(env.device)
        size = torch.Size((rows.shape[0], *env.batch_size))
        return new_tensordict({}, size, env.device).set(env.action_key, rows.to(env.device))

    def _rows(self, actions: Any, batch_size: torch.Size, count: int) -> Any:
        dim = len(batch_size)
        if actions.shape[:dim] != batch_size or actions.ndim <= dim:
            raise ArgumentError(
                f"the actions are of shape {tuple(actions.shape)}, the env's batch size is "
                f"{tuple(batch_size)}",
                hint="give them as [*B, T, ...]",
            )
        start, held = self.position, actions.shape[dim]
        if start >= held:
            raise self.used_up
        count = min(count, held - start)
        self.position += count
        index = (*[slice(None)] * dim, slice(start, start + count))
        rows = actions[index]
        return rows.movedim(dim, 0) if isinstance(rows, Tensor) else rows.permute(dim, *range(dim))


class ActionCheck:
    """Holds what a policy writes against the action spec, before the env takes it.

    Args:
        env: whose actions they are.
    """

    def __init__(self, env: EnvBase) -> None:
        spec = env.full_action_spec
        self._expected = [
            (key, spec[key].shape, spec[key].dtype, spec[key].dtype.is_floating_point)
            for key in env.action_keys
        ]

    def plain(self) -> Callable[[Any], bool]:
        """What tells whether an action is what the one action should be, down to its dtype."""
        _, shape, dtype, _ = self._expected[0]

        def is_plain(action: Any) -> bool:
            return type(action) is Tensor and action.dtype is dtype and action.shape == shape

        return is_plain

    def rather(self, get: Callable[[NestedKey], Any], error: Exception) -> Exception:
        """What to blame where an env raised: the action, if it is no number, or what it raised.

        Args:
            get: gives the entry of a key, or ``None``.
            error: what was raised.
        """
        for key, _, _, floating in self._expected:
            action = get(key)
            if floating and isinstance(action, Tensor) and bool(action.isnan().any()):
                return nan_error(key)
        return error

    def __call__(self, get: Callable[[NestedKey], Any]) -> None:
        """Raise where an action is not what the env takes.

        Args:
            get: gives the entry of a key, or ``None``.

        Raises:
            ArgumentError: an action is missing, or of another shape or kind of number.
        """
        for key, shape, dtype, floating in self._expected:
            action = get(key)
            if type(action) is Tensor and action.dtype is dtype and action.shape == shape:
                continue
            if not isinstance(action, Tensor):
                if action is None:
                    raise ArgumentError(
                        f"the policy wrote no {format_key(key)!r}",
                        hint="name the action's key in the policy's out_keys",
                    )
                raise ArgumentError(
                    f"the policy wrote {type(action).__name__} into {format_key(key)!r}",
                    hint="write a tensor as env.action_spec says",
                )
            if action.shape != shape or action.is_floating_point() != floating:
                raise ArgumentError(
                    f"the policy wrote {format_key(key)!r} of shape {tuple(action.shape)} and "
                    f"{action.dtype}, the action spec says {tuple(shape)} and "
                    f"{'floats' if floating else 'integers'}",
                    hint="hold it against env.action_spec",
                )


def first_nan(actions: Tensor) -> int | None:
    """The first of the steps ``[T, *B, ...]`` whose actions are not all numbers."""
    if not actions.is_floating_point() or not bool(actions.isnan().any()):
        return None
    return int(actions.isnan().reshape(len(actions), -1).any(-1).nonzero()[0])


def nan_error(key: NestedKey) -> ArgumentError:
    """What to raise where an action is not a number."""
    return ArgumentError(
        f"the policy wrote NaN into {format_key(key)!r}",
        hint="look at what it reads there: at the last step that iter_rollout yields",
    )

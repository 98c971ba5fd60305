"""Methods of an env that change its specs: from the data of its first steps, or in place."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from tensordict import TensorDictBase, is_non_tensor
from torch import Tensor

from tdx.foundation.errors import SpecError
from tdx.foundation.keys import NestedKey, format_key, normalize_key, sibling_key, split_key
from tdx.specs import Categorical, Composite, NonTensor, TensorSpec, Unbounded

# EnvBase, whose methods these are, imports this module.
Env = TypeVar("Env", bound=Any)

_FLAGS = ("done", "terminated", "truncated")

Keys = NestedKey | Sequence[NestedKey]


def auto_specs_(
    env: Env,
    policy: Callable[[TensorDictBase], TensorDictBase],
    *,
    tensordict: TensorDictBase | None = None,
    action_key: Keys = "action",
    done_key: Keys | None = None,
    observation_key: Keys = "observation",
    reward_key: Keys = "reward",
) -> Env:
    """Set the specs of the env from two steps of a policy.

    A dim whose size differs between both steps is declared as -1. Everything else that the env
    reads at the root becomes a state.

    Args:
        env: The env.
        policy: Writes the actions.
        tensordict: Input of the first step; that of a reset by default.
        action_key: Actions, one key or several.
        done_key: Done flags. ``None``: entries named ``done``, ``terminated`` and ``truncated``.
        observation_key: Observations, one key or several.
        reward_key: Rewards, one key or several.

    Returns:
        The env.

    Raises:
        SpecError: A step writes an entry that is none of these.
    """
    start = env.reset() if tensordict is None else tensordict
    first = env.step(policy(start).copy())
    second = env.step(policy(env.step_mdp(first)).copy())
    taken = _infer(first.exclude("next"), second.exclude("next"), env)
    written = _infer(first["next"], second["next"], env)
    if done_key is None:
        flags = [key for key in written if split_key(key)[-1] in _FLAGS]
    else:
        flags = _key_list(done_key)
    parts = {
        "full_done_spec": _take(written, flags),
        "full_reward_spec": _take(written, _key_list(reward_key)),
        "full_observation_spec": _take(written, _key_list(observation_key)),
        "full_action_spec": _take(taken, _key_list(action_key)),
        "full_state_spec": taken,
    }
    if written:
        raise SpecError(
            f"the step writes {format_key(next(iter(written)))!r}, which has no part of the specs",
            hint="name it in observation_key, reward_key or done_key",
        )
    for name, leaves in parts.items():
        setattr(env, name, Composite(leaves, shape=env.batch_size, device=env.device))
    return env


def _key_list(keys: Keys) -> list[NestedKey]:
    given = [keys] if isinstance(keys, (str, tuple)) else list(keys)
    return [normalize_key(key) for key in given]


def _take(
    leaves: dict[NestedKey, TensorSpec], keys: Sequence[NestedKey]
) -> dict[NestedKey, TensorSpec]:
    """Remove keys, or all keys of these groups, and return their specs."""
    chosen = {split_key(key) for key in keys}
    taken = [
        key for key in leaves if any(split_key(key)[: len(parts)] == parts for parts in chosen)
    ]
    return {key: leaves.pop(key) for key in taken}


def _infer(first: TensorDictBase, second: TensorDictBase, env: Any) -> dict[NestedKey, TensorSpec]:
    """Return the spec of each entry of two TensorDicts ``[*A, *B]`` of an env."""
    extra = first.ndim - env.ndim
    leaves: dict[NestedKey, TensorSpec] = {}
    for raw_key in first.keys(True, True, is_leaf=_is_leaf):
        key = normalize_key(raw_key)
        value, other = first.get(key), second.get(key, None)
        if not isinstance(value, Tensor):
            leaves[key] = NonTensor(shape=env.batch_size, device=env.device, example_data=value)
            continue
        sizes = list(value.shape[extra:])
        if isinstance(other, Tensor) and other.ndim == value.ndim:
            pairs = zip(sizes, other.shape[extra:], strict=True)
            sizes = [size if size == later else -1 for size, later in pairs]
        leaves[key] = _leaf(key, torch.Size(sizes), value)
    return leaves


def _leaf(key: NestedKey, shape: torch.Size, value: Tensor) -> TensorSpec:
    if value.dtype is torch.bool and split_key(key)[-1] in _FLAGS:
        return Categorical(2, shape=shape, dtype=torch.bool, device=value.device)
    return Unbounded(shape=shape, dtype=value.dtype, device=value.device)


def _is_leaf(kind: type) -> bool:
    return not issubclass(kind, TensorDictBase) or is_non_tensor(kind)


def set_spec_lock_(env: Env, mode: bool = True) -> Env:
    """Lock the specs against changes in place, or unlock them.

    Args:
        env: The env.
        mode: If False, unlock them.

    Returns:
        The env.
    """
    env.is_spec_locked = mode
    return env


def add_truncated_keys(env: Env) -> Env:
    """Declare a ``truncated`` flag in each group of done flags that has none.

    Returns:
        The env.
    """
    flags = env.full_done_spec.clone()
    flags.unlock_()
    for group in env.done_keys_groups:
        key = sibling_key(group[0], "truncated")
        if key not in group:
            flags[key] = flags[group[0]].clone()
    env.full_done_spec = flags
    return env

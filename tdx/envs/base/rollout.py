"""Rollouts that step the env one step after another."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import torch
from tensordict import LazyStackedTensorDict, TensorDictBase

from tdx.envs.base.done_flags import any_done
from tdx.envs.base.policies import Policy, as_policy
from tdx.errors import ArgumentError, EnvError
from tdx.keys import key_parts
from tdx.tensordicts import read, write

if TYPE_CHECKING:
    from tdx.envs.base.env_base import EnvBase


class Callback(Protocol):
    """Called after each step with the env and that step's TensorDict."""

    def __call__(self, env: EnvBase, tensordict: TensorDictBase, /) -> Any: ...


def start_of(env: EnvBase, auto_reset: bool, tensordict: TensorDictBase | None) -> TensorDictBase:
    """The input of the first step, ``[*B]``: what is given, or what it is reset to.

    Raises:
        ArgumentError: there is to be no reset, and nothing is given.
    """
    start = None if tensordict is None else tensordict.clone(recurse=False)
    if start is not None and "next" in start.keys():
        # The result of an earlier step is no part of where this one starts.
        del start["next"]
    if auto_reset:
        return env.reset(start)
    if start is None:
        raise ArgumentError(
            "auto_reset is off and no tensordict is given to start from",
            hint="pass tensordict=env.reset()",
        )
    return start


def collect(
    env: EnvBase,
    max_steps: int,
    policy: Policy,
    callback: Callback | None,
    start: TensorDictBase,
    *,
    auto_cast_to_device: bool,
    break_when_any_done: bool,
    break_when_all_done: bool,
    set_truncated: bool,
) -> list[TensorDictBase]:
    """Step the env and keep every step's TensorDict, each of shape ``[*B]``."""
    policy_device = _policy_device(policy) if auto_cast_to_device else None
    policy = as_policy(policy, env)
    current, steps = start, []
    done_keys = env.done_keys
    for index in range(max_steps):
        if policy_device is not None:
            current = policy(current.to(policy_device)).to(env.device)
        else:
            current = policy(current)
        if current is None:
            raise ArgumentError(
                "the policy returned None, it must return a TensorDict",
                hint="end the policy with `return tensordict`",
            )
        current = env.step(current)
        last = index == max_steps - 1
        if last and set_truncated:
            _truncate(env, current)
        steps.append(current)
        if callback is not None:
            callback(env, current)
        if last:
            break
        following = current.get("next")
        if break_when_any_done and any_done(following, done_keys):
            break
        if break_when_all_done and _all_done(following, done_keys):
            break
        current = env.step_mdp(current)
        if not break_when_any_done and not break_when_all_done:
            current = env.maybe_reset(current)
    return steps


def stacked(steps: list[TensorDictBase], dim: int, contiguous: bool) -> TensorDictBase:
    """The steps along a new dim named ``time``, behind the batch dims."""
    if not contiguous:
        lazy = LazyStackedTensorDict.lazy_stack(steps, dim)
        lazy.refine_names(..., "time")
        return lazy
    try:
        result: TensorDictBase = torch.stack(steps, dim)
    except RuntimeError as error:
        raise EnvError(
            "the steps of this rollout differ in shape or keys and cannot be one block",
            hint="pass return_contiguous=False",
        ) from error
    result.refine_names(..., "time")
    return result


def _policy_device(policy: Policy) -> torch.device | None:
    parameters = getattr(policy, "parameters", None)
    first = next(iter(parameters()), None) if callable(parameters) else None
    return None if first is None else first.device


def _all_done(tensordict: TensorDictBase, done_keys: list[Any]) -> bool:
    flags = [read(tensordict, key) for key in done_keys if key_parts(key)[-1] == "done"]
    return bool(flags) and all(bool(flag.all()) for flag in flags)


def _truncate(env: EnvBase, tensordict: TensorDictBase) -> None:
    names = [key for key in env.done_keys if key_parts(key)[-1] in ("done", "truncated")]
    if not any(key_parts(key)[-1] == "truncated" for key in names):
        raise ArgumentError(
            "set_truncated needs a truncated key, and the env has none",
            hint="declare truncated in the done spec",
        )
    following = tensordict.get("next")
    for key in names:
        write(following, key, torch.ones_like(read(following, key)))

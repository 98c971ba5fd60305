"""Rollouts that step the env one step after another."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import torch
from tensordict import LazyStackedTensorDict, TensorDictBase

from tdx.core.envs.alike_steps import AlikeSteps
from tdx.core.envs.done_flags import any_done
from tdx.core.envs.failures import at_step, failed
from tdx.core.envs.policies import ActionCheck, Policy, as_policy, first_nan, nan_error
from tdx.errors import ArgumentError, EnvError
from tdx.keys import split_key
from tdx.tensordicts import read

if TYPE_CHECKING:
    from tdx.core.envs.env_base import EnvBase


class Callback(Protocol):
    """Called after each step with the env and that step's TensorDict."""

    def __call__(self, env: EnvBase, tensordict: TensorDictBase, /) -> Any: ...


def check_steps(max_steps: int) -> None:
    """Raise where a number of steps is none.

    Raises:
        ArgumentError: it is no integer of at least 1.
    """
    if isinstance(max_steps, bool) or not isinstance(max_steps, int) or max_steps < 1:
        raise ArgumentError(
            f"max_steps must be at least 1, got {max_steps}", hint="pass a positive integer"
        )


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
    steps: list[TensorDictBase],
    *,
    first_step: int = 0,
    auto_cast_to_device: bool,
    break_when_any_done: bool,
    break_when_all_done: bool,
) -> bool:
    """Step the env and keep every step's TensorDict, each of shape ``[*B]``.

    Args:
        env: the env.
        max_steps: the most steps to make.
        policy: see ``EnvBase.rollout``, like all that is not said here.
        callback: called after each step.
        start: the first step's input, ``[*B]``.
        steps: where they are appended, so that those before an error are not lost.
        first_step: the number of the first one, for messages.
        auto_cast_to_device: whether the policy gets its input on its own device.
        break_when_any_done: whether to stop at the first done flag.
        break_when_all_done: whether to stop once every row is done.

    Returns:
        whether an end stopped it.
    """
    drawn = policy == env.rand_action or not env.batch_locked
    check = None if drawn else ActionCheck(env)
    policy_device = _policy_device(policy) if auto_cast_to_device else None
    policy = as_policy(policy, env)
    current, done_keys = start, env.done_keys
    for index in range(max_steps):
        step, last = first_step + index, index == max_steps - 1
        try:
            current = _acted(policy, current, env, policy_device)
            if check is not None:
                check_step(check, env, current)
        except Exception as error:
            at_step(error, step)
            raise
        try:
            current = env.step(current)
        except Exception as error:
            made = failed(env, "step", error).at(step=step)
            raise made from made.__cause__
        steps.append(current)
        if callback is not None:
            _call_back(callback, env, current, step)
        following = current.get("next")
        if break_when_any_done and any_done(following, done_keys):
            return True
        if break_when_all_done and _all_done(following, done_keys):
            return True
        if last:
            return False
        current = env.step_mdp(current)
        if not break_when_any_done and not break_when_all_done:
            current = begun_anew(env, current, step + 1)
    return False


def _acted(
    policy: Policy, current: TensorDictBase, env: EnvBase, device: torch.device | None
) -> TensorDictBase:
    """What the policy makes of a step's input; it may get it on a device of its own."""
    result: Any = policy(current if device is None else current.to(device))
    if not isinstance(result, TensorDictBase):
        name = "None" if result is None else type(result).__name__
        raise ArgumentError(
            f"the policy returned {name}, it must return a TensorDict",
            hint="end the policy with `return tensordict`",
        )
    return result if device is None else result.to(env.device)


def _call_back(callback: Callback, env: EnvBase, tensordict: TensorDictBase, step: int) -> None:
    try:
        callback(env, tensordict)
    except Exception as error:
        at_step(error, step)
        raise


def begun_anew(env: EnvBase, tensordict: TensorDictBase, step: int) -> TensorDictBase:
    """A step's input ``[*B]`` with what has ended begun anew.

    Args:
        env: the env.
        tensordict: what ``step_mdp`` has made.
        step: the number of the step that it is for.
    """
    try:
        return env.maybe_reset(tensordict)
    except Exception as error:
        made = failed(env, "reset", error).at(step=step)
        raise made from made.__cause__


def check_step(check: ActionCheck, env: EnvBase, tensordict: TensorDictBase) -> None:
    """Raise where what a policy wrote for a step is no action of the env's."""
    check(lambda key: read(tensordict, key))
    if env.device.type == "cpu":
        for key in env.action_keys:
            if first_nan(read(tensordict, key).unsqueeze(0)) is not None:
                raise nan_error(key)


def stacked(steps: list[TensorDictBase], dim: int, contiguous: bool) -> TensorDictBase:
    """The steps along a new dim named ``time``, behind the batch dims."""
    if not contiguous:
        lazy = LazyStackedTensorDict.lazy_stack(steps, dim)
        lazy.refine_names(..., "time")
        return lazy
    try:
        result: TensorDictBase = torch.stack(steps, dim)
    except Exception as error:
        found = AlikeSteps().first_unlike(steps)
        if found is not None:
            raise found[1].at(step=found[0]) from error
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
    flags = [read(tensordict, key) for key in done_keys if split_key(key)[-1] == "done"]
    return bool(flags) and all(bool(flag.all()) for flag in flags)


def truncated(env: EnvBase, rollout: TensorDictBase) -> TensorDictBase:
    """A rollout ``[*B, T]`` with its last step marked as truncated and done.

    Raises:
        ArgumentError: the env has no truncated flag.
    """
    names = [key for key in env.done_keys if split_key(key)[-1] in ("done", "truncated")]
    if not any(split_key(key)[-1] == "truncated" for key in names):
        raise ArgumentError(
            "set_truncated needs a truncated key, and the env has none",
            hint="declare truncated in the done spec",
        )
    following, last = rollout.get("next"), rollout.ndim - 1
    for key in names:
        flag = read(following, key).clone()
        flag.select(last, -1).fill_(True)
        following.set(key, flag)
    return rollout

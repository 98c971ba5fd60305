"""Chunks of a rollout that are made by ``env.step``, and the check that their steps can be stacked.

:mod:`tdx.core.planned.executor` runs every rollout. If a plan is not possible, it takes an
:class:`EagerRun` from here instead of a ``PlannedRun``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from tensordict import LazyStackedTensorDict, TensorDict, TensorDictBase
from torch import Tensor

from tdx.core.envs.done_flags import all_done, any_done
from tdx.core.envs.env_base import EnvBase
from tdx.core.envs.failures import env_failure, with_step
from tdx.core.envs.policies import ActionCheck, ActionSequence, as_policy, first_nan, nan_error
from tdx.core.envs.rollout import Policy, RolloutRequest
from tdx.core.meter import LOOP, Part
from tdx.foundation.errors import ArgumentError, EnvError, Where
from tdx.foundation.keys import NestedKey, normalize_key, split_key
from tdx.foundation.tensordicts import read, write


@dataclass(slots=True)
class RolloutChunk:
    """Consecutive steps of a rollout."""

    # one block [*B, T]; a list of steps [*B] if they cannot be one block
    data: TensorDictBase | list[TensorDictBase]
    length: int
    stopped: bool = False  # True if a done flag ended the rollout
    error: Exception | None = None  # raised after the last step
    # Returns the root of the next step, [*B], as step_mdp() does.
    following: Callable[[], TensorDictBase] | None = None


class EagerRun:
    """Steps an env step by step, with the interface of a planned run."""

    def __init__(self, env: EnvBase, request: RolloutRequest) -> None:
        self._env, self._request = env, request
        self._step_count = 0
        self._policy = env.rand_action if request.policy is None else request.policy
        meter = env.meter
        self._collect = collect if meter is None else meter.timed(LOOP, collect)
        # A policy whose device is needed has to stay the module that it is.
        replaceable = request.policy is not None and not request.auto_cast_to_device
        if meter is not None and replaceable:
            name = getattr(request.policy, "__name__", None) or type(request.policy).__name__
            act = as_policy(request.policy, env)
            self._policy = meter.timed(Part("policy", -1, name, "step"), act)

    def chunk(self, start: TensorDictBase, length: int) -> RolloutChunk:
        """Make up to ``length`` steps from a root ``[*B]``."""
        env, request = self._env, self._request
        steps: list[TensorDictBase] = []
        error: Exception | None = None
        try:
            stopped = self._collect(
                env, length, self._policy, start, steps, request, first_step=self._step_count
            )
        except Exception as raised:
            stopped, error = False, raised
        self._step_count += len(steps)
        last = steps[-1] if steps else None
        following = None if last is None else lambda: env.step_mdp(last)
        return RolloutChunk(steps, len(steps), stopped, error, following)


def collect(
    env: EnvBase,
    max_steps: int,
    policy: Policy,
    start: TensorDictBase,
    steps: list[TensorDictBase],
    request: RolloutRequest,
    *,
    first_step: int = 0,
) -> bool:
    """Step the env and append the TensorDict of every step, ``[*B]``, to ``steps``.

    Returns True if a done flag ended the rollout. ``steps`` keeps the steps before an error.
    """
    is_random = policy == env.rand_action or not env.batch_locked
    check = None if is_random else ActionCheck(env)
    device = policy_device(policy) if request.auto_cast_to_device else None
    # The actions of a sequence are data, which a planned rollout checks as a whole.
    can_add_dim = not isinstance(request.policy, ActionSequence)
    policy, callback = as_policy(policy, env), request.callback
    current, end_keys = start, env.env_specs.end_keys()
    for index in range(max_steps):
        step = first_step + index
        try:
            current = _act(policy, current, env, device)
            if check is not None:
                check(partial(read, current), partial(write, current) if can_add_dim else None)
                if env.env_specs.placed().main_device.type == "cpu":
                    for key in check.keys:
                        if first_nan(read(current, key).unsqueeze(0)) is not None:
                            raise nan_error(key)
        except Exception as error:
            with_step(error, step)
            raise
        try:
            current = env.step(current)
        except Exception as error:
            failure = env_failure(env, "step", error).at(step=step)
            raise failure from failure.__cause__
        steps.append(current)
        if callback is not None:
            try:
                callback(env, current)
            except Exception as error:
                with_step(error, step)
                raise
        following = current.get("next")
        if request.break_when_any_done and any_done(following, end_keys):
            return True
        if request.break_when_all_done and all_done(following, end_keys):
            return True
        if index == max_steps - 1:
            return False
        current = env.step_mdp(current)
        if not request.breaks:
            current = reset_done_rows(env, current, step + 1)
    return False


def _act(
    policy: Policy, current: TensorDictBase, env: EnvBase, device: torch.device | None
) -> TensorDictBase:
    """Call the policy, on its own device if there is one."""
    result: Any = policy(current if device is None else current.to(device))
    if not isinstance(result, TensorDictBase):
        name = "None" if result is None else type(result).__name__
        raise ArgumentError(
            f"the policy returned {name}, it must return a TensorDict",
            hint="end the policy with `return tensordict`",
        )
    if device is not None:
        result = result if env.device is None else result.to(env.device)
    # A policy may return a new TensorDict with nothing but its actions.
    return result if result is current else current.clone(recurse=False).update(result)


def reset_done_rows(env: EnvBase, tensordict: TensorDictBase, step: int) -> TensorDictBase:
    """Return the input of a step ``[*B]``, the result of ``step_mdp``, with the done rows reset."""
    try:
        return env.maybe_reset(tensordict)
    except Exception as error:
        failure = env_failure(env, "reset", error).at(step=step)
        raise failure from failure.__cause__


def policy_device(policy: Any) -> torch.device | None:
    """Return the device of a policy's first parameter; ``None`` without parameters."""
    parameters = getattr(policy, "parameters", None)
    first = next(iter(parameters()), None) if callable(parameters) else None
    return None if first is None else first.device


def stack_steps(steps: list[TensorDictBase], dim: int, contiguous: bool) -> TensorDictBase:
    """Stack steps ``[*B]`` to ``[*B, T]``: one contiguous block, or a lazy stack."""
    if not contiguous:
        # refine_names() would read entries, and those of unlike agents do not stack.
        return LazyStackedTensorDict.lazy_stack(steps, dim, stack_dim_name="time")
    try:
        result: TensorDictBase = torch.stack(steps, dim)
    except Exception as error:
        mismatch = StepLayout().find_mismatch(steps)
        if mismatch is not None:
            raise mismatch[1].at(step=mismatch[0]) from error
        raise EnvError(
            "the steps of this rollout differ in shape or keys and cannot be one block",
            hint="pass return_contiguous=False",
        ) from error
    result.refine_names(..., "time")
    return result


def mark_truncated(env: EnvBase, rollout: TensorDictBase) -> TensorDictBase:
    """Mark the last step of a rollout ``[*B, T]`` as truncated and done."""
    names = [key for key in env.done_keys if split_key(key)[-1] in ("done", "truncated")]
    if not any(split_key(key)[-1] == "truncated" for key in names):
        raise ArgumentError(
            "set_truncated was set to True, but the env has no truncated key",
            hint="declare truncated in the done spec, for example by env.add_truncated_keys()",
        )
    following, last = rollout.get("next"), rollout.ndim - 1
    for key in names:
        flag = read(following, key).clone()
        flag.select(last, -1).fill_(True)
        following.set(key, flag)
    return rollout


_HINT = (
    "fix the env: each step must return the same keys, shapes and dtypes; or keep steps that "
    "differ with rollout(..., return_contiguous=False)"
)

ShapeAndDtype = tuple[torch.Size, torch.dtype] | None
"""Shape and dtype of an entry; ``None`` for an entry that is not a tensor."""


class StepLayout:
    """Compares the keys, shapes and dtypes of each step with those of the first one.

    Only plain TensorDicts are compared: steps that are stacked from unlike rows may differ.
    """

    def __init__(self) -> None:
        self._entries: dict[NestedKey, ShapeAndDtype] | None = None

    def find_mismatch(self, steps: Sequence[TensorDictBase]) -> tuple[int, EnvError] | None:
        """Return the first step with other keys, shapes or dtypes, and the error to raise."""
        for index, step in enumerate(steps):
            error = self.check(step)
            if error is not None:
                return index, error
        return None

    def check(self, step: TensorDictBase) -> EnvError | None:
        """Return the error for a step that differs from the first one, ``None`` otherwise."""
        if type(step) is not TensorDict:
            return None
        entries = _entries_of(step, ())
        if self._entries is None:
            self._entries = entries
        return None if entries == self._entries else _difference(self._entries, entries)


def _entries_of(
    tensordict: TensorDictBase, path: tuple[str, ...]
) -> dict[NestedKey, ShapeAndDtype]:
    layouts: dict[NestedKey, ShapeAndDtype] = {}
    for name in tensordict.keys():
        value, here = read(tensordict, name), (*path, name)
        if isinstance(value, Tensor):
            layouts[normalize_key(here)] = (value.shape, value.dtype)
        elif type(value) is TensorDict:
            layouts |= _entries_of(value, here)
        else:
            layouts[normalize_key(here)] = None
    return layouts


def _difference(
    first: dict[NestedKey, ShapeAndDtype], other: dict[NestedKey, ShapeAndDtype]
) -> EnvError | None:
    for key in [*first, *(key for key in other if key not in first)]:
        if key not in other:
            return _mismatch(key, "it is missing; the steps before have it")
        if key not in first:
            return _mismatch(key, "the steps before lack it")
        before, now = first[key], other[key]
        if before == now:
            continue
        if before is None or now is None:
            return _mismatch(key, "it changes between a tensor and another object")
        if before[0] != now[0]:
            actual, expected = tuple(now[0]), tuple(before[0])
            return _mismatch(key, f"its shape is {actual}, in the steps before {expected}")
        return _mismatch(key, f"its dtype is {now[1]}, in the steps before {before[1]}")
    return None


def _mismatch(key: NestedKey, message: str) -> EnvError:
    parts = split_key(key)
    plain = normalize_key(parts[1:] if parts[0] == "next" and parts[1:] else parts)
    return EnvError(message, hint=_HINT, where=Where(key=plain))


def reset_mismatch(key: NestedKey, after_reset: Tensor, before: Tensor) -> EnvError:
    """Return the error for an entry of a reset that differs from that of the step before it."""
    now, expected = (f"{value.dtype} {tuple(value.shape)}" for value in (after_reset, before))
    return _mismatch(key, f"reset returned {now}, the steps before it {expected}")

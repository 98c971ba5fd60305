"""``env.rollout`` and ``env.iter_rollout``: by a plan where it is safe, else step by step."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from tensordict import TensorDictBase

from tdx.core.envs import EnvBase
from tdx.core.envs.alike_steps import AlikeSteps
from tdx.core.envs.policies import ActionSequence, as_policy
from tdx.core.envs.rollout import Callback, begun_anew, collect, stacked, start_of, truncated
from tdx.core.meter import ASSEMBLY, LOOP, SETUP, Part, meter_of
from tdx.core.planned.chunk_size import chunk_steps_for, whole_steps_for
from tdx.core.planned.run import PlannedRun, Stretch, prepared


@dataclass(frozen=True, slots=True)
class Request:
    """What a rollout is asked to do; see :meth:`~tdx.core.envs.EnvBase.rollout`."""

    policy: Any
    callback: Callback | None
    auto_cast_to_device: bool
    break_when_any_done: bool
    break_when_all_done: bool

    @property
    def ends(self) -> bool:
        """Whether an end stops the rollout."""
        return self.break_when_any_done or self.break_when_all_done


def rollout(
    env: EnvBase,
    max_steps: int,
    request: Request,
    *,
    auto_reset: bool,
    return_contiguous: bool,
    tensordict: TensorDictBase | None,
    set_truncated: bool,
) -> TensorDictBase:
    """A whole rollout, ``[*B, T]``; see :meth:`~tdx.core.envs.EnvBase.rollout`."""
    start = _started(env, request, auto_reset, tensordict)
    parts: list[TensorDictBase | list[TensorDictBase]] = []
    for part in _parts(env, request, start, max_steps, whole_steps_for(env)):
        if part.error is not None:
            raise part.error
        parts.append(part.data)
    result = _timed(env, _joined)(parts, start.ndim, return_contiguous)
    reached = result.shape[start.ndim] == max_steps
    return truncated(env, result) if set_truncated and reached else result


def iter_rollout(
    env: EnvBase,
    max_steps: int | None,
    request: Request,
    *,
    chunk_steps: int | None,
    chunk_bytes: int | None,
    auto_reset: bool,
    tensordict: TensorDictBase | None,
) -> Iterator[TensorDictBase]:
    """A rollout chunk after chunk, each ``[*B, t]``; see ``EnvBase.iter_rollout``."""
    size = chunk_steps_for(env, chunk_steps, chunk_bytes)
    return _chunks(env, max_steps, request, size, auto_reset, tensordict)


def _chunks(
    env: EnvBase,
    max_steps: int | None,
    request: Request,
    size: int,
    auto_reset: bool,
    tensordict: TensorDictBase | None,
) -> Iterator[TensorDictBase]:
    start, join = _started(env, request, auto_reset, tensordict), _timed(env, _taken)
    alike, made = AlikeSteps(), 0
    for part in _parts(env, request, start, max_steps, size):
        _cut_unlike(part, alike, made)
        made += part.length
        if part.length:
            yield join(part, start.ndim)
        if part.error is not None:
            raise part.error


def _cut_unlike(part: Stretch, alike: AlikeSteps, made: int) -> None:
    """Keep the steps before the first one that differs from those of the rollout so far."""
    found = alike.first_unlike(part.data) if isinstance(part.data, list) else None
    if found is not None:
        index, error = found
        part.data, part.length = part.data[:index], index
        part.stopped, part.error = False, error.at(step=made + index)


def _timed(env: EnvBase, join: Callable[..., TensorDictBase]) -> Callable[..., TensorDictBase]:
    meter = meter_of(env)
    return join if meter is None else meter.timed(ASSEMBLY, join)


def _taken(part: Stretch, dim: int) -> TensorDictBase:
    """The steps of a stretch as one TensorDict; what they were before is not kept."""
    whole = _joined([part.data], dim, True)
    part.data = []
    return whole


def _started(
    env: EnvBase, request: Request, auto_reset: bool, tensordict: TensorDictBase | None
) -> TensorDictBase:
    if isinstance(request.policy, ActionSequence):
        request.policy.rewind()
    return start_of(env, auto_reset, tensordict)


def _parts(
    env: EnvBase, request: Request, start: TensorDictBase, max_steps: int | None, size: int
) -> Iterator[Stretch]:
    """The stretches of a rollout, each as long as a chunk at most."""
    meter = meter_of(env)
    plan = _planned if meter is None else meter.timed(SETUP, _planned)
    run = plan(env, request, start)
    eager = None if run is not None else _EagerRun(env, request)
    made = 0
    while max_steps is None or made < max_steps:
        length = size if max_steps is None else min(size, max_steps - made)
        if run is not None:
            part = run.chunk(start, length)
        else:
            assert eager is not None
            part = eager.chunk(start, length)
        made += part.length
        over = part.stopped or part.error is not None or made == max_steps
        yield part
        if over or part.following is None:
            return
        start = part.following()
        del part
        if not request.ends:
            start = begun_anew(env, start, made)


def _planned(env: EnvBase, request: Request, start: TensorDictBase) -> PlannedRun | None:
    if request.callback is not None or request.break_when_all_done:
        return None
    if request.auto_cast_to_device and _is_elsewhere(request.policy, env.device):
        return None
    stop = "any" if request.break_when_any_done else "never"
    return prepared(env, request.policy, start, stop)  # type: ignore[arg-type]


def _is_elsewhere(policy: Any, device: torch.device) -> bool:
    parameters = getattr(policy, "parameters", None)
    first = next(iter(parameters()), None) if callable(parameters) else None
    return first is not None and first.device != device


class _EagerRun:
    """Steps an env step after step, with the interface of a planned run.

    Args:
        env: the env.
        request: what to do.
    """

    def __init__(self, env: EnvBase, request: Request) -> None:
        self._env, self._request = env, request
        self._made = 0
        self._policy = env.rand_action if request.policy is None else request.policy
        meter = meter_of(env)
        self._collect = collect if meter is None else meter.timed(LOOP, collect)
        # One that is asked for its device stays the module that it is.
        own = request.policy is not None and not request.auto_cast_to_device
        if meter is not None and own:
            name = getattr(request.policy, "__name__", None) or type(request.policy).__name__
            act = as_policy(request.policy, env)
            self._policy = meter.timed(Part("policy", -1, name, "step"), act)

    def chunk(self, start: TensorDictBase, length: int) -> Stretch:
        """Make up to ``length`` steps from a root ``[*B]``."""
        env, request = self._env, self._request
        steps: list[TensorDictBase] = []
        error: Exception | None = None
        try:
            stopped = self._collect(
                env,
                length,
                self._policy,
                request.callback,
                start,
                steps,
                first_step=self._made,
                auto_cast_to_device=request.auto_cast_to_device,
                break_when_any_done=request.break_when_any_done,
                break_when_all_done=request.break_when_all_done,
            )
        except Exception as raised:
            stopped, error = False, raised
        self._made += len(steps)
        last = steps[-1] if steps else None
        following = None if last is None else lambda: env.step_mdp(last)
        return Stretch(steps, len(steps), stopped, error, following)


def _joined(
    parts: list[TensorDictBase | list[TensorDictBase]], dim: int, contiguous: bool
) -> TensorDictBase:
    """The parts as one TensorDict with a dim of time."""
    if len(parts) == 1 and not isinstance(parts[0], list) and contiguous:
        parts[0].refine_names(..., "time")
        return parts[0]
    if contiguous and not any(isinstance(part, list) for part in parts):
        result: TensorDictBase = torch.cat(parts, dim)  # type: ignore[arg-type]
        result.refine_names(..., "time")
        return result
    rows: list[TensorDictBase] = []
    for part in parts:
        rows.extend(part if isinstance(part, list) else part.unbind(dim))
    return stacked(rows, dim, contiguous)

"""``env.rollout`` and ``env.iter_rollout``: by a plan if that is safe, else step by step."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from tensordict import TensorDictBase

from tdx.core.envs.env_base import EnvBase
from tdx.core.envs.policies import ActionSequence, as_policy
from tdx.core.envs.rollout import (
    StepLayout,
    collect,
    first_input,
    mark_truncated,
    policy_device,
    reset_done_rows,
    stack_steps,
)
from tdx.core.envs.services import RolloutRequest
from tdx.core.meter import ASSEMBLY, LOOP, SETUP, Part, meter_of
from tdx.core.planned.collector import Stop
from tdx.core.planned.run import PlannedRun, RolloutChunk, prepare_run
from tdx.errors import ArgumentError

STREAM_BYTES = 8 * 2**20
"""Size of a chunk of ``iter_rollout``. Larger chunks save no time and need more memory."""

WHOLE_BYTES = 256 * 2**20
"""Size of a chunk of ``rollout``, where joining chunks costs more than small chunks save."""

MAX_CHUNK_STEPS = 10_000


def rollout(
    env: EnvBase,
    max_steps: int,
    request: RolloutRequest,
    *,
    auto_reset: bool,
    return_contiguous: bool,
    tensordict: TensorDictBase | None,
    set_truncated: bool,
) -> TensorDictBase:
    """Return a whole rollout, ``[*B, T]``; see :meth:`~tdx.core.envs.EnvBase.rollout`."""
    start = _start(env, request, auto_reset, tensordict)
    steps_per_chunk = _steps_of(WHOLE_BYTES, env)
    parts: list[TensorDictBase | list[TensorDictBase]] = []
    for chunk in _chunks(env, request, start, max_steps, steps_per_chunk):
        if chunk.error is not None:
            raise chunk.error
        parts.append(chunk.data)
    result = _measured(env, _join)(parts, start.ndim, return_contiguous)
    is_full = result.shape[start.ndim] == max_steps
    return mark_truncated(env, result) if set_truncated and is_full else result


def iter_rollout(
    env: EnvBase,
    max_steps: int | None,
    request: RolloutRequest,
    *,
    chunk_steps: int | None,
    chunk_bytes: int | None,
    auto_reset: bool,
    tensordict: TensorDictBase | None,
) -> Iterator[TensorDictBase]:
    """Return an iterator over the chunks of a rollout, each ``[*B, t]``.

    See :meth:`~tdx.core.envs.EnvBase.iter_rollout`. Arguments are checked before the first chunk
    is requested.
    """
    size = chunk_steps_for(env, chunk_steps, chunk_bytes)
    return _iter_chunks(env, max_steps, request, size, auto_reset, tensordict)


def _iter_chunks(
    env: EnvBase,
    max_steps: int | None,
    request: RolloutRequest,
    size: int,
    auto_reset: bool,
    tensordict: TensorDictBase | None,
) -> Iterator[TensorDictBase]:
    start, join = _start(env, request, auto_reset, tensordict), _measured(env, _take_data)
    layout, step_count = StepLayout(), 0
    for chunk in _chunks(env, request, start, max_steps, size):
        _cut_at_mismatch(chunk, layout, step_count)
        step_count += chunk.length
        if chunk.length:
            yield join(chunk, start.ndim)
        if chunk.error is not None:
            raise chunk.error


def _cut_at_mismatch(chunk: RolloutChunk, layout: StepLayout, step_count: int) -> None:
    """Keep the steps before the first one that differs from those of the rollout so far."""
    mismatch = layout.find_mismatch(chunk.data) if isinstance(chunk.data, list) else None
    if mismatch is not None:
        index, error = mismatch
        chunk.data, chunk.length = chunk.data[:index], index
        chunk.stopped, chunk.error = False, error.at(step=step_count + index)


def _measured(env: EnvBase, join: Callable[..., TensorDictBase]) -> Callable[..., TensorDictBase]:
    meter = meter_of(env)
    return join if meter is None else meter.timed(ASSEMBLY, join)


def _take_data(chunk: RolloutChunk, dim: int) -> TensorDictBase:
    """Return the steps of a chunk as one TensorDict, and release the chunk's own reference."""
    whole = _join([chunk.data], dim, True)
    chunk.data = []
    return whole


def _start(
    env: EnvBase, request: RolloutRequest, auto_reset: bool, tensordict: TensorDictBase | None
) -> TensorDictBase:
    if isinstance(request.policy, ActionSequence):
        request.policy.rewind()
    return first_input(env, auto_reset, tensordict)


def _chunks(
    env: EnvBase, request: RolloutRequest, start: TensorDictBase, max_steps: int | None, size: int
) -> Iterator[RolloutChunk]:
    """Iterate over the chunks of a rollout, each of at most ``size`` steps."""
    meter = meter_of(env)
    prepare = _planned_run if meter is None else meter.timed(SETUP, _planned_run)
    run = prepare(env, request, start) or _EagerRun(env, request)
    step_count = 0
    while max_steps is None or step_count < max_steps:
        length = size if max_steps is None else min(size, max_steps - step_count)
        chunk = run.chunk(start, length)
        step_count += chunk.length
        is_last = chunk.stopped or chunk.error is not None or step_count == max_steps
        yield chunk
        if is_last or chunk.following is None:
            return
        start = chunk.following()
        del chunk
        if not request.breaks:
            start = reset_done_rows(env, start, step_count)


def _planned_run(env: EnvBase, request: RolloutRequest, start: TensorDictBase) -> PlannedRun | None:
    if request.callback is not None or request.break_when_all_done:
        return None
    if request.auto_cast_to_device and policy_device(request.policy) not in (None, env.device):
        return None
    stop: Stop = "any" if request.break_when_any_done else "never"
    return prepare_run(env, request.policy, start, stop)


class _EagerRun:
    """Steps an env step by step, with the interface of a planned run."""

    def __init__(self, env: EnvBase, request: RolloutRequest) -> None:
        self._env, self._request = env, request
        self._step_count = 0
        self._policy = env.rand_action if request.policy is None else request.policy
        meter = meter_of(env)
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


def _join(
    parts: list[TensorDictBase | list[TensorDictBase]], dim: int, contiguous: bool
) -> TensorDictBase:
    """Return the parts as one TensorDict with a time dim."""
    if len(parts) == 1 and not isinstance(parts[0], list) and contiguous:
        parts[0].refine_names(..., "time")
        return parts[0]
    if contiguous and not any(isinstance(part, list) for part in parts):
        result: TensorDictBase = torch.cat(parts, dim)  # type: ignore[arg-type]
        result.refine_names(..., "time")
        return result
    steps: list[TensorDictBase] = []
    for part in parts:
        steps.extend(part if isinstance(part, list) else part.unbind(dim))
    return stack_steps(steps, dim, contiguous)


def chunk_steps_for(env: EnvBase, chunk_steps: int | None, chunk_bytes: int | None) -> int:
    """Return the number of steps of a chunk of ``iter_rollout``.

    Args:
        env: The env with its chain.
        chunk_steps: Number of steps. ``None``: chosen by size.
        chunk_bytes: Memory of a chunk of the result. ``None``: :data:`STREAM_BYTES`.

    Raises:
        ArgumentError: Both are given, or one is not an integer of at least 1.
    """
    if chunk_steps is not None and chunk_bytes is not None:
        raise ArgumentError("chunk_steps and chunk_bytes are both given", hint="pass one of them")
    for name, value in (("chunk_steps", chunk_steps), ("chunk_bytes", chunk_bytes)):
        if value is not None and (
            isinstance(value, bool) or not isinstance(value, int) or value < 1
        ):
            raise ArgumentError(
                f"{name} must be an integer of at least 1, got {value!r}",
                hint="pass a positive integer, or leave it out for the default",
            )
    if chunk_steps is not None:
        return chunk_steps
    return _steps_of(STREAM_BYTES if chunk_bytes is None else chunk_bytes, env)


def _steps_of(size: int, env: EnvBase) -> int:
    return max(1, min(MAX_CHUNK_STEPS, size // max(step_bytes(env), 1)))


def step_bytes(env: EnvBase) -> int:
    """Return the number of bytes of one step of a rollout, from the specs."""
    total = 0
    for part, copies in (
        ("full_observation_spec", 2),
        ("full_done_spec", 2),
        ("full_reward_spec", 1),
    ):
        for spec in env.output_spec[part].values(True, True):
            total += copies * _nbytes(spec)
    return total + sum(_nbytes(spec) for spec in env.full_action_spec.values(True, True))


def _nbytes(spec: object) -> int:
    shape, dtype = getattr(spec, "shape", None), getattr(spec, "dtype", None)
    if shape is None or dtype is None or any(size < 0 for size in shape):
        return 0
    return int(shape.numel()) * int(dtype.itemsize)

"""How many steps make a chunk."""

from __future__ import annotations

from tdx.core.envs import EnvBase
from tdx.errors import ArgumentError

CHUNK_BYTES = 8 * 2**20
"""Of a stream of chunks: larger ones save nothing any more, and cost memory."""

WHOLE_BYTES = 256 * 2**20
"""Of a rollout that is kept whole: joining its chunks costs more than what they save."""

MOST_STEPS = 10_000


def whole_steps_for(env: EnvBase) -> int:
    """The number of steps of a chunk in a rollout that is returned as a whole."""
    return max(1, min(MOST_STEPS, WHOLE_BYTES // max(step_bytes(env), 1)))


def chunk_steps_for(env: EnvBase, chunk_steps: int | None, chunk_bytes: int | None) -> int:
    """The number of steps of a chunk.

    Args:
        env: the env, with its chain.
        chunk_steps: as it is asked for, if it is.
        chunk_bytes: how much memory a chunk's result may take, if that is asked for.

    Raises:
        ArgumentError: both are given, or one is no integer of at least 1.
    """
    if chunk_steps is not None and chunk_bytes is not None:
        raise ArgumentError("chunk_steps and chunk_bytes are both given", hint="give one of them")
    for name, value in (("chunk_steps", chunk_steps), ("chunk_bytes", chunk_bytes)):
        if value is not None and (
            isinstance(value, bool) or not isinstance(value, int) or value < 1
        ):
            raise ArgumentError(
                f"{name} must be an integer of at least 1, got {value!r}",
                hint="give a positive whole number, or leave it out for the default",
            )
    if chunk_steps is not None:
        return chunk_steps
    size = CHUNK_BYTES if chunk_bytes is None else chunk_bytes
    return max(1, min(MOST_STEPS, size // max(step_bytes(env), 1)))


def step_bytes(env: EnvBase) -> int:
    """How many bytes one step takes in a rollout, from the specs."""
    total = 0
    for part, times in (
        ("full_observation_spec", 2),
        ("full_done_spec", 2),
        ("full_reward_spec", 1),
    ):
        for spec in env.output_spec[part].values(True, True):
            total += times * _bytes(spec)
    return total + sum(_bytes(spec) for spec in env.full_action_spec.values(True, True))


def _bytes(spec: object) -> int:
    shape, dtype = getattr(spec, "shape", None), getattr(spec, "dtype", None)
    if shape is None or dtype is None or any(size < 0 for size in shape):
        return 0
    return int(shape.numel()) * int(dtype.itemsize)

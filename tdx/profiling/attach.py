"""Puts a meter around every call of an env, its stages and its policy, and takes it away again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import gymnasium
from tensordict import TensorDictBase
from torch import nn

from tdx.core.envs import EnvBase
from tdx.core.meter import DRAWING, UNATTRIBUTED, Meter, Part, base_parts, engine_part
from tdx.core.plan.forms import flattened
from tdx.core.transformed_env import TransformedEnv
from tdx.core.transforms import Compose, Transform
from tdx.core.transforms.chunk import Chunk
from tdx.errors import ArgumentError
from tdx.profiling.gym_wrappers import measure_gym, measure_wrappers
from tdx.profiling.patches import Patches
from tdx.profiling.transfers import measure_transfers

ROLLOUT = engine_part(UNATTRIBUTED)
STEP = engine_part("tensordicts of a step")
CARRY = engine_part("step_mdp")
RESET = engine_part("tensordicts of a reset")
MAYBE = engine_part("looking for ends")
CALL = engine_part("chain")


@contextmanager
def measured(
    target: EnvBase | Transform | gymnasium.Env[Any, Any],
    meter: Meter,
    *,
    all_wrappers: bool = False,
) -> Iterator[None]:
    """Have every call of an env or a chain measured while the block runs; nothing is left behind.

    Args:
        target: the env, with its chain; or a transform that maps stored data; or a Gymnasium env.
        meter: what measures.
        all_wrappers: whether the thin Gymnasium wrappers that ``gymnasium.make`` adds count where
            there are no others.

    Raises:
        ArgumentError: the target is none of these, or is being measured already.
    """
    patches = Patches()
    if isinstance(target, EnvBase):
        if target._meter is not None:
            raise ArgumentError(
                "this env is being profiled already", hint="profile it once at a time"
            )
        place: Callable[[], None] = lambda: _measure_env(  # noqa: E731
            target, meter, patches, all_wrappers
        )
        levels = _levels(target)
    elif isinstance(target, Transform):
        place = lambda: _measure_chain(target, meter, patches)  # noqa: E731
        levels = []
    elif isinstance(target, gymnasium.Env):
        place = lambda: measure_gym(target, meter, patches, all_wrappers)  # noqa: E731
        levels = []
    else:
        raise ArgumentError(
            f"an env or a transform can be profiled, got {type(target).__name__}",
            hint="give an env, a Compose or a gymnasium.Env",
        )
    try:
        place()
        yield
    finally:
        patches.undo()
        for level in levels:
            level._measure_with(None)


def _levels(env: EnvBase) -> list[TransformedEnv]:
    """The transformed envs inside each other, the outermost first."""
    found = []
    while isinstance(env, TransformedEnv):
        found.append(env)
        env = env.base_env
    return found


def _measure_env(env: EnvBase, meter: Meter, patches: Patches, all_wrappers: bool) -> None:
    _ = env.output_spec, env.input_spec
    base, stages = flattened(env)
    patches.put(base, "_meter", meter)
    measure_wrappers(env, meter, patches, thin=all_wrappers)
    measure_transfers(base, meter, patches)
    step, reset = base_parts(base)
    patches.put(base, "_completed_step", meter.timed(step, base._completed_step))
    patches.put(base, "_completed_reset", meter.timed(reset, base._completed_reset))
    for index, stage in enumerate(stages):
        _measure_stage(index, stage, meter, patches, env.ndim)
    for level in reversed(_levels(env)):
        level._measure_with(meter)
    for name, part in (
        ("rollout", ROLLOUT),
        ("step", STEP),
        ("reset", RESET),
        ("step_mdp", CARRY),
        ("maybe_reset", MAYBE),
        ("rand_action", DRAWING),
    ):
        patches.put(env, name, meter.timed(part, getattr(env, name)))
    patches.put(env, "iter_rollout", _timed_chunks(env.iter_rollout, meter))


def _timed_chunks(function: Callable[..., Iterator[Any]], meter: Meter) -> Callable[..., Any]:
    """``iter_rollout``, with what it does for each chunk measured, and not what its caller does."""

    def iter_rollout(*args: Any, **kwargs: Any) -> Iterator[Any]:
        chunks = function(*args, **kwargs)

        def next_chunk() -> Any:
            return next(chunks, None)

        following = meter.timed(ROLLOUT, next_chunk)
        while (chunk := following()) is not None:
            yield chunk

    return iter_rollout


def _measure_stage(
    index: int, stage: Transform, meter: Meter, patches: Patches, batch_dims: int
) -> None:
    name = type(stage).__name__
    forward = Part("stage", index, name, "forward")
    inverse = Part("stage", index, name, "inverse")
    reset = Part("stage", index, name, "reset")
    time_form = stage._chunk_kernel

    def timed_form() -> Any:
        form = time_form()
        if form is None:
            return None
        return replace(form, run=meter.timed(forward, form.run, steps=_chunk_length))

    def timed_row(make: Callable[[], Any]) -> Callable[[], Any]:
        def row_step() -> Any:
            made = make()
            return None if made is None else meter.timed(forward, made)

        return row_step

    def block_length(tensordict: TensorDictBase) -> int:
        # The actions of many steps go through the way in as one block.
        return int(tensordict.shape[0]) if tensordict.ndim > batch_dims else 1

    own_row = type(stage)._step_dict_inplace is not Transform._step_dict_inplace
    row, owned_row = stage._step_dict, stage._step_dict_inplace
    patches.put(stage, "_chunk_kernel", timed_form)
    patches.put(stage, "_step_dict", timed_row(row))
    if own_row:
        patches.put(stage, "_step_dict_inplace", timed_row(owned_row))
    patches.put(stage, "_step", meter.timed(forward, stage._step))
    patches.put(stage, "_reset", meter.timed(reset, stage._reset))
    if stage.invertible:
        patches.put(stage, "_inv_call", meter.timed(inverse, stage._inv_call, block_length))
    own_preprocess = type(stage)._reset_env_preprocess is not Transform._reset_env_preprocess
    if own_preprocess or stage.invertible:
        preprocess = meter.timed(reset, stage._reset_env_preprocess)
        patches.put(stage, "_reset_env_preprocess", preprocess)


def _chunk_length(chunk: Chunk) -> int:
    return chunk.length


def _measure_chain(chain: Transform, meter: Meter, patches: Patches) -> None:
    """A chain that maps stored data: its ``forward``, and that of each stage."""
    for index, stage in enumerate(chain_stages(chain)):
        name = type(stage).__name__
        patches.put(
            stage, "forward", meter.timed(Part("stage", index, name, "forward"), stage.forward)
        )
        if stage.invertible:
            inverse = Part("stage", index, name, "inverse")
            patches.put(stage, "_inv_call", meter.timed(inverse, stage._inv_call))
    if isinstance(chain, Compose):
        patches.put(chain, "forward", meter.timed(CALL, chain.forward))
        patches.put(chain, "_inv_call", meter.timed(CALL, chain._inv_call))


def chain_stages(chain: nn.Module) -> Iterator[Transform]:
    """The transforms of a chain in order, those of nested ones run on."""
    if type(chain) is Compose:
        for stage in chain:
            yield from chain_stages(stage)
    elif isinstance(chain, Transform):
        yield chain

"""Attach a meter to every call of an env, its stages and its policy, and detach it again.

The hooks of the env and its stages are those of :class:`~tdx.stacks.native_levels.ChainLevels`. A
plan runs stages for whole chunks instead, and the engine has parts of its own: both are measured
here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace

from tensordict import TensorDictBase

from tdx.core.chain import flatten_chain, flatten_stages
from tdx.core.envs import EnvBase
from tdx.core.meter import (
    CONVERSION,
    DRAWING,
    TRANSFERS,
    UNATTRIBUTED,
    Meter,
    Part,
    base_parts,
    engine_part,
)
from tdx.core.transformed_env import TransformedEnv
from tdx.core.transforms import Compose, Transform
from tdx.core.transforms.kernels import ArrayForm, ArrayKernel
from tdx.envs.gym.gym_wrapper import GymWrapper
from tdx.envs.gym.wrappers import CheckedValues
from tdx.foundation.errors import ArgumentError
from tdx.foundation.keys import NestedKey
from tdx.foundation.patches import Patches, instance_dict, recording_thread
from tdx.stacks.gymnasium.levels import THIN_WRAPPERS, core_of, list_levels
from tdx.stacks.gymnasium.observed import WrapperLevels
from tdx.stacks.native_levels import ChainLevels
from tdx.stacks.observe import check_threads, timed_levels


def _attach_to_wrappers(
    env: EnvBase, meter: Meter, patches: Patches, opened: ExitStack, *, thin: bool
) -> None:
    """Measure the Gymnasium envs and wrappers inside an env, without tdx's conversion."""
    base = flatten_chain(env)[0]
    for stepper in base.gym_steppers:
        inner = stepper.env
        # Its time is part of that of the vector env, which it belongs to.
        levels = [level for level in list_levels(inner) if type(level.owner) is not CheckedValues]
        core = core_of(inner)
        around = [level for level in levels[1:] if level.owner is not core]
        if not thin and all(type(level.owner) in THIN_WRAPPERS for level in around):
            if instance_dict(inner) is None:
                continue
            for name, part in zip(("step", "reset"), base_parts(base.display_name), strict=True):
                patches.put(inner, name, meter.timed(part, getattr(inner, name)))
        elif around:
            # The name distinguishes its row from that of the env of tdx around it.
            name = f"{levels[0].env_name} unwrapped"
            opened.enter_context(timed_levels(WrapperLevels(inner, levels, name), meter))
        patches.put(base, "step_part", CONVERSION)
        # It caches the unmeasured step.
        patches.keep(stepper)
        stepper.use(stepper.conversion)


def _attach_to_transfers(base: EnvBase, meter: Meter, patches: Patches) -> None:
    """Measure the copies that tdx makes of the results of a Gymnasium env on the host.

    There are none if the results stay on the host.
    """
    if not isinstance(base, GymWrapper) or base.main_device.type == "cpu":
        return
    for stepper in base.gym_steppers:
        if stepper.finish is not None:
            patches.put(stepper, "finish", meter.timed(TRANSFERS, stepper.finish))


ROLLOUT_PART = engine_part(UNATTRIBUTED)
STEP_PART = engine_part("tensordicts of a step")
STEP_MDP_PART = engine_part("step_mdp")
RESET_PART = engine_part("tensordicts of a reset")
MAYBE_RESET_PART = engine_part("maybe_reset")
CHAIN_PART = engine_part("chain")


@contextmanager
def timed_env(env: EnvBase, meter: Meter, *, all_wrappers: bool = False) -> Iterator[None]:
    """Measure every call of an env and its chain in a block.

    ``all_wrappers`` includes the thin Gymnasium wrappers that ``gymnasium.make`` adds if there are
    no others.
    """
    if env.meter is not None:
        raise ArgumentError("this env is being profiled already", hint="profile it once at a time")
    threads: set[int] = set()
    levels = list_transformed_envs(env)
    base = levels[-1].base_env if levels else env
    try:
        with Patches() as patches, ExitStack() as opened:
            _ = env.output_spec, env.input_spec
            patches.put(base, "meter", meter)
            _attach_to_wrappers(env, meter, patches, opened, thin=all_wrappers)
            _attach_to_env(env, meter, patches, threads)
            opened.enter_context(base.record_threads(threads))
            yield
    finally:
        for level in levels:
            level.measure_with(None)
    check_threads(threads, base.display_name)


@contextmanager
def timed_chain(chain: Transform, meter: Meter) -> Iterator[None]:
    """Measure ``forward`` and the inverse of a chain that maps stored data, and of each stage."""
    with Patches() as patches:
        for index, stage in enumerate(flatten_stages((chain,))):
            name = type(stage).__name__
            forward = Part("stage", index, name, "forward")
            patches.put(stage, "forward", meter.timed(forward, stage.forward))
            if stage.invertible:
                inverse = Part("stage", index, name, "inverse")
                patches.put(stage, "_inv_call", meter.timed(inverse, stage._inv_call))
        if isinstance(chain, Compose):
            patches.put(chain, "forward", meter.timed(CHAIN_PART, chain.forward))
            patches.put(chain, "_inv_call", meter.timed(CHAIN_PART, chain._inv_call))
        yield


def list_transformed_envs(env: EnvBase) -> list[TransformedEnv]:
    """List the transformed envs inside each other, outermost first."""
    levels = []
    while isinstance(env, TransformedEnv):
        levels.append(env)
        env = env.base_env
    return levels


def _attach_to_env(
    env: EnvBase,
    meter: Meter,
    patches: Patches,
    threads: set[int],
) -> None:
    base, _ = flatten_chain(env)
    _attach_to_transfers(base, meter, patches)

    def block_length(tensordict: TensorDictBase) -> int:
        # The inverse path maps the actions of many steps as one block.
        return int(tensordict.shape[0]) if tensordict.ndim > env.ndim else 1

    levels = ChainLevels(env)
    for slot in levels.slots():
        original, steps = getattr(slot.owner, slot.name), None
        if slot.method == "inverse":
            steps = block_length
        patches.put(slot.owner, slot.name, meter.timed(levels.part(slot), original, steps))
        if slot.level >= 0 and slot.method == "step":
            _attach_to_kernels(slot.owner, levels.part(slot), meter, patches)
    for level in reversed(list_transformed_envs(env)):
        level.measure_with(meter)
    for name, part in (
        ("rollout", ROLLOUT_PART),
        ("step", STEP_PART),
        ("reset", RESET_PART),
        ("step_mdp", STEP_MDP_PART),
        ("maybe_reset", MAYBE_RESET_PART),
        ("rand_action", DRAWING),
    ):
        patches.put(env, name, meter.timed(part, getattr(env, name)))
    iter_rollout = _timed_iter_rollout(env.iter_rollout, meter, threads)
    patches.put(env, "iter_rollout", iter_rollout)
    # Other threads may step any level. The chain does not call these methods of inner levels.
    for inner in (base, *list_transformed_envs(env)):
        for name in ("step", "rollout"):
            patches.put(inner, name, recording_thread(getattr(inner, name), threads))


def _timed_iter_rollout(
    function: Callable[..., Iterator[object]], meter: Meter, threads: set[int]
) -> Callable[..., object]:
    """Measure the work of ``iter_rollout`` for each chunk, but not the work of its caller."""

    def iter_rollout(*args: object, **kwargs: object) -> Iterator[object]:
        chunks = function(*args, **kwargs)
        next_chunk = recording_thread(lambda: next(chunks, None), threads)
        following = meter.timed(ROLLOUT_PART, next_chunk)
        while (chunk := following()) is not None:
            yield chunk

    return iter_rollout


def _attach_to_kernels(stage: Transform, forward: Part, meter: Meter, patches: Patches) -> None:
    """Measure the forms of a stage that a plan runs instead of its hooks, for steps or chunks.

    A recorded call would force the plan to run hooks, whose times are other ones: these forms are
    measured, and have no events.
    """
    make_form = stage.make_chunk_kernel

    def timed_form() -> object:
        form = make_form()
        if form is None:
            return None
        return replace(form, run=meter.timed(forward, form.run, lambda chunk: chunk.length))

    def timed_dict_step() -> object:
        function = make_dict_step()
        return None if function is None else meter.timed(forward, function)

    make_kernel = stage.make_array_kernel

    def timed_kernel(in_key: NestedKey, form: ArrayForm) -> ArrayKernel | None:
        kernel = make_kernel(in_key, form)
        return None if kernel is None else replace(kernel, run=meter.timed(forward, kernel.run))

    make_dict_step = stage.make_dict_step
    patches.put(stage, "make_chunk_kernel", timed_form)
    patches.put(stage, "make_array_kernel", timed_kernel)
    patches.put(stage, "make_dict_step", timed_dict_step)

"""Traced equals eager: values, specs, random draws and the final state."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tensordict import TensorDictBase

from tdx import (
    CartPoleEnv,
    CatFrames,
    Compose,
    EnvBase,
    FrameSkipTransform,
    GymEnv,
    NoopResetEnv,
    PendulumEnv,
    RenameTransform,
    SerialEnv,
    StepTrace,
    TdxError,
    Tracer,
    Transform,
    TransformedEnv,
    VecNorm,
)
from tests.core.stages import STAGES
from tests.core.test_random_chains import Sums
from tests.envs.mocks import NoisyEnv, TwoGroupsEnv
from tests.programs import examples


class AddsInPlace(Transform):
    """Stage that writes into its input, which is not allowed."""

    def __init__(self) -> None:
        super().__init__(in_keys=["reward"])

    def _call(self, next_tensordict: TensorDictBase) -> TensorDictBase:
        next_tensordict["reward"].add_(1.0)
        return next_tensordict


class Draws(Transform):
    """Stage that draws random numbers in each hook."""

    def __init__(self) -> None:
        super().__init__(in_keys=["reward"], in_keys_inv=["action"])

    def _apply_transform(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor + torch.rand(())

    def _inv_apply_transform(self, tensor: torch.Tensor) -> torch.Tensor:
        torch.rand(())
        return tensor


CHAIN: dict[str, Callable[[], Any]] = {
    **STAGES,
    "draws": Draws,
    "frame_skip": lambda: FrameSkipTransform(2),
    "in_place": AddsInPlace,
    "noops": lambda: NoopResetEnv(2),
    "vec_norm": VecNorm,
    "cat_frames_of_nested": lambda: CatFrames(3, -1, in_keys=[("nested", "steps")]),
    "rename_flat": lambda: RenameTransform([("nested", "steps")], ["steps"]),
}
ENVS: dict[str, Callable[[], EnvBase]] = {
    "CartPole": lambda: GymEnv("CartPole-v1"),
    "Pendulum": lambda: GymEnv("Pendulum-v1"),
    "three CartPoles": lambda: GymEnv("CartPole-v1", num_envs=3),
    "two Pendulums": lambda: SerialEnv(2, lambda: GymEnv("Pendulum-v1")),
    "native": lambda: PendulumEnv(batch_size=[2, 3], max_episode_steps=3),
    "native CartPole": lambda: CartPoleEnv(max_episode_steps=3),
    "nested keys": lambda: Sums(3, torch.float32),
    "nested batch": lambda: SerialEnv(
        2, [lambda: Sums(2, torch.float32), lambda: Sums(3, torch.float32)]
    ),
    "noisy": lambda: NoisyEnv(3),
    "groups": TwoGroupsEnv,
}
STEPS = 6


def driven_eagerly(env: EnvBase, masks: list[bool]) -> list[TensorDictBase]:
    """Step with random actions; a mask marks steps before which the first row is reset."""
    current, found = env.reset(), []
    found.append(current.clone())
    for masked in masks:
        if masked:
            current = env.reset(with_mask(env, current))
            found.append(current.clone())
        current = env.step(env.rand_action(current))
        found.append(current.clone())
        current = env.maybe_reset(env.step_mdp(current))
    found.append(current.clone())
    return found


def driven_traced(env: EnvBase, masks: list[bool], traces: list[StepTrace]) -> list[TensorDictBase]:
    """Make the same steps with a tracer."""
    tracer, found = Tracer(env), []
    traces.append(tracer.reset())
    found.append(traces[-1].tensordict.clone())
    for masked in masks:
        tracer.reset_done()
        if masked:
            assert tracer.current is not None
            traces.append(tracer.reset(with_mask(env, tracer.current)))
            found.append(traces[-1].tensordict.clone())
        traces.append(tracer.step())
        found.append(traces[-1].tensordict.clone())
    tracer.reset_done()
    assert tracer.current is not None
    found.append(tracer.current.clone())
    return found


def with_mask(env: EnvBase, current: TensorDictBase) -> TensorDictBase:
    for group, key in zip(env.done_keys_groups, env.reset_keys, strict=True):
        mask = torch.zeros_like(current[group[0]])
        mask.reshape(max(env.numel(), 1), -1)[0] = True
        current.set(key, mask)
    return current


def assert_same(mine: TensorDictBase, other: TensorDictBase) -> None:
    keys = set(mine.keys(True, True))
    assert keys == set(other.keys(True, True))
    assert mine.batch_size == other.batch_size
    assert mine.device == other.device
    for key in keys:
        torch.testing.assert_close(mine[key], other[key], rtol=0, atol=0, equal_nan=True)


def made(env: str, names: list[str], cut: int | None) -> EnvBase:
    def chain(part: list[str]) -> Compose:
        return Compose(*(CHAIN[name]() for name in part))

    if cut is None:
        return TransformedEnv(ENVS[env](), chain(names))
    return TransformedEnv(TransformedEnv(ENVS[env](), chain(names[:cut])), chain(names[cut:]))


@settings(max_examples=examples(50))
@given(
    env=st.sampled_from(sorted(ENVS)),
    names=st.lists(st.sampled_from(sorted(CHAIN)), max_size=7, unique=True),
    cut=st.none() | st.integers(0, 7),
    masks=st.lists(st.booleans(), min_size=STEPS, max_size=STEPS),
)
def test_traced_equals_eager(
    env: str, names: list[str], cut: int | None, masks: list[bool]
) -> None:
    eager, traced = made(env, names, cut), made(env, names, cut)
    for each in (eager, traced):
        each.set_seed(5)
    torch.manual_seed(5)
    try:
        expected = driven_eagerly(eager, masks)
    except (TdxError, KeyError, RuntimeError):
        return
    after = torch.get_rng_state()
    torch.manual_seed(5)
    traces: list[StepTrace] = []
    for mine, other in zip(driven_traced(traced, masks, traces), expected, strict=True):
        assert_same(mine, other)
    assert bool((torch.get_rng_state() == after).all())
    assert str(traced.specs) == str(eager.specs)
    for trace, other in zip(traces, expected, strict=False):
        # Stored traces do not change.
        assert_same(trace.tensordict, other)
        last = trace.after(10**9)
        for key, value in trace.env_tensordict.items(True, True):
            name = key if isinstance(key, str) else tuple(key)
            if name in last and not last[name].lost:
                torch.testing.assert_close(last[name].value, value, rtol=0, atol=0, equal_nan=True)
    left = []
    for each in (traced, eager):
        torch.manual_seed(7)
        left.append(driven_eagerly(each, masks[:2]))
    for mine, other in zip(*left, strict=True):
        assert_same(mine, other)
    eager.close()
    traced.close()

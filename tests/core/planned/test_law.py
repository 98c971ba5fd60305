"""Planned equals eager: keys, shapes, dtypes and values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModule
from torch import nn

from tdx import (
    CartPoleEnv,
    CatFrames,
    Compose,
    EnvBase,
    GymEnv,
    InitTracker,
    ObservationNorm,
    PendulumEnv,
    RewardSum,
    SerialEnv,
    StepCounter,
    TdxError,
    TransformedEnv,
    VecNorm,
)
from tdx.core.plan import plan_of
from tests.core.planned.drawing import CHAINS_OF, ENVS, policy_reading
from tests.programs import examples


def compared(planned: TensorDictBase, eager: TensorDictBase, rtol: float = 0.0) -> None:
    """Fail if two rollouts differ."""
    assert planned.batch_size == eager.batch_size
    assert planned.names == eager.names
    assert planned.device == eager.device
    mine, other = set(planned.keys(True, True)), set(eager.keys(True, True))
    assert mine == other, mine ^ other
    for key in mine:
        ours, theirs = planned.get(key), eager.get(key)
        assert ours.dtype == theirs.dtype, key
        assert ours.shape == theirs.shape, key
        name = str(key)
        torch.testing.assert_close(
            ours, theirs, rtol=rtol, atol=rtol, equal_nan=True, msg=f"{name} differs"
        )


def rolled_out(
    make: Callable[[bool], TransformedEnv],
    planned: bool,
    steps: int,
    stop: bool,
    reads: str | None,
    chunk: int | None,
) -> tuple[TransformedEnv, list[TensorDictBase]]:
    """Return a rollout or its chunks, and one manual step after it."""
    env = make(planned)
    env.set_seed(3)
    torch.manual_seed(5)
    policy = None if reads is None else policy_reading(env, reads)
    torch.manual_seed(7)
    if chunk is None:
        parts = [env.rollout(steps, policy, break_when_any_done=stop)]
    else:
        parts = list(env.iter_rollout(steps, policy, chunk_steps=chunk, break_when_any_done=stop))
    root = env.maybe_reset(env.step_mdp(parts[-1][..., -1]))
    return env, [*parts, env.rand_step(root)]


@settings(max_examples=examples(200))
@given(
    env=st.sampled_from(sorted(ENVS)),
    names=st.lists(st.sampled_from(sorted(CHAINS_OF)), max_size=7, unique=True),
    steps=st.integers(1, 24),
    stop=st.booleans(),
    reader=st.sampled_from([None, None, "first", "last"]),
    chunk=st.none() | st.integers(1, 20),
)
def test_planned_is_eager(
    env: str, names: list[str], steps: int, stop: bool, reader: str | None, chunk: int | None
) -> None:
    def make(planned: bool) -> TransformedEnv:
        chain = Compose(*(CHAINS_OF[name]() for name in names))
        return TransformedEnv(ENVS[env](), chain, planned=planned)

    try:
        _ = make(True).specs
    except TdxError:
        return
    mine, parts = rolled_out(make, True, steps, stop, reader, chunk)
    other, expected = rolled_out(make, False, steps, stop, reader, chunk)
    assert plan_of(other).executor == "eager"
    assert len(parts) == len(expected)
    for ours, theirs in zip(parts, expected, strict=True):
        compared(ours, theirs)
    for ours, theirs in zip(mine.state_dict().items(), other.state_dict().items(), strict=True):
        assert ours[0] == theirs[0]
        assert torch.equal(ours[1], theirs[1])


PLANNED: dict[str, Callable[[], EnvBase]] = {
    "CartPole": lambda: GymEnv("CartPole-v1"),
    "FrozenLake": lambda: GymEnv("FrozenLake-v1"),
    "four CartPoles": lambda: SerialEnv(4, lambda: GymEnv("CartPole-v1")),
    "three CartPoles": lambda: GymEnv("CartPole-v1", num_envs=3),
    "native": lambda: CartPoleEnv(batch_size=[2, 3]),
    "episodes of one step": lambda: PendulumEnv(batch_size=[2], max_episode_steps=1),
}


@pytest.mark.parametrize("stop", [True, False])
@pytest.mark.parametrize("name", sorted(PLANNED))
def test_the_plan_is_used(name: str, stop: bool) -> None:
    """The two rollouts that are compared run in different ways."""

    def make(planned: bool) -> TransformedEnv:
        base = PLANNED[name]()
        stages: list[Any] = [InitTracker(), RewardSum(), StepCounter(9)]
        if base.full_observation_spec["observation"].dtype.is_floating_point:
            stages += [ObservationNorm(0.1, 2.0), VecNorm(["reward"])]
        stages.append(CatFrames(3, -1, in_keys=["observation"]))
        return TransformedEnv(base, Compose(*stages), planned=planned)

    assert plan_of(make(True)).why_eager == ""
    _, parts = rolled_out(make, True, 60, stop, None, None)
    _, expected = rolled_out(make, False, 60, stop, None, None)
    for ours, theirs in zip(parts, expected, strict=True):
        compared(ours, theirs)


def test_a_policy_module_needs_no_tensordict() -> None:
    torch.manual_seed(0)
    net = nn.Linear(12, 1)

    def make(planned: bool) -> TransformedEnv:
        chain = Compose(ObservationNorm(0.1, 2.0), CatFrames(4, -1, in_keys=["observation"]))
        return TransformedEnv(GymEnv("Pendulum-v1"), chain, planned=planned)

    results = []
    for planned in (True, False):
        for policy in (net, TensorDictModule(net, ["observation"], ["action"])):
            env = make(planned)
            env.set_seed(0)
            results.append(env.rollout(20, policy).detach())
    for other in results[1:]:
        compared(results[0], other)

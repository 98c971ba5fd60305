"""The step over plain dicts: the same values, bit for bit, as the hooks over TensorDicts."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, cast

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tensordict import TensorDict, TensorDictBase

from tdx import (
    CatFrames,
    Compose,
    EnvBase,
    GymEnv,
    GymWrapper,
    InitTracker,
    PendulumEnv,
    RenameTransform,
    RewardClipping,
    RewardSum,
    StepCounter,
    TdxError,
    Transform,
    TransformedEnv,
)
from tests.core.stages import STAGES
from tests.envs.mocks import CountingEnv
from tests.programs import examples


class CountsFrames(CatFrames):
    """Subclass that extends ``_call``."""

    def _call(self, next_tensordict: TensorDictBase) -> TensorDictBase:
        next_tensordict = super()._call(next_tensordict)
        return next_tensordict.set("frames", torch.full((1,), self.N))


class InvertsFlag(InitTracker):
    """Subclass that extends ``_step``."""

    def _step(self, tensordict: TensorDictBase, next_tensordict: TensorDictBase) -> TensorDictBase:
        next_tensordict = super()._step(tensordict, next_tensordict)
        return next_tensordict.set("is_init", ~next_tensordict["is_init"])


COPIES: dict[str, Callable[[Any], Any]] = {
    "itself": lambda env: env,
    "a deep copy": copy.deepcopy,
    "a pickled copy": lambda env: pickle.loads(pickle.dumps(env)),
}


@contextmanager
def hooks_only() -> Iterator[None]:
    """Chains that are created in this block call their hooks one after another."""
    patch = pytest.MonkeyPatch()
    patch.setattr(GymWrapper, "step_fields", None)
    try:
        yield
    finally:
        patch.undo()


def driven(env: TransformedEnv, actions: list[torch.Tensor], plan: list[str]) -> list[Any]:
    """Step with a script that has one entry per step."""
    key = env.action_key
    current, steps = env.reset(), []
    for action, what in zip(actions, plan, strict=True):
        current.set(key, action.clone())
        if what == "preset":
            preset = TensorDict(observation=torch.full((3,), 9.0), extra=torch.ones(1))
            current.set("next", preset)
        elif what == "nested preset":
            current.set("next", TensorDict(group=TensorDict(extra=torch.ones(1))))
        elif what == "extra":
            current.set(("given", "deep"), torch.ones(2))
        current = env.step(current)
        steps.append(current.clone())
        current = env.step_mdp(current)
        if what == "reset" or bool(current["done"].any()):
            current = env.reset()
    return steps


def assert_same(mine: TensorDictBase, other: TensorDictBase) -> None:
    keys = set(mine.keys(True, True))
    assert keys == set(other.keys(True, True))
    for key in keys:
        torch.testing.assert_close(mine[key], other[key], rtol=0, atol=0, equal_nan=True)


@settings(max_examples=examples(120))
@given(
    names=st.lists(st.sampled_from(sorted(STAGES)), min_size=1, max_size=8, unique=True),
    plan=st.lists(
        st.sampled_from(["step", "step", "reset", "preset", "nested preset", "extra"]),
        min_size=9,
        max_size=9,
    ),
    which=st.sampled_from(sorted(COPIES)),
)
def test_dicts_and_hooks_give_the_same_steps(names: list[str], plan: list[str], which: str) -> None:
    made = []
    for _ in range(2):
        env = TransformedEnv(GymEnv("Pendulum-v1"), Compose(*(STAGES[name]() for name in names)))
        env.set_seed(1)
        made.append(env)
    fast, slow = made
    try:
        actions = [fast.full_action_spec.rand()[fast.action_key] for _ in plan]
    except TdxError:
        return
    fast.rollout(2)
    fast = COPIES[which](fast)
    fast.set_seed(1)
    with hooks_only():
        slow.rollout(2)
        slow.set_seed(1)
        expected = driven(slow, actions, plan)
    for step, other in zip(driven(fast, actions, plan), expected, strict=True):
        assert_same(step, other)


def test_overrides_of_a_subclass_run() -> None:
    stage = CountsFrames(2, -1, in_keys=["observation"])
    env = TransformedEnv(GymEnv("Pendulum-v1"), Compose(InvertsFlag(), stage))
    step = env.rand_step(env.reset())["next"]
    assert step["frames"].tolist() == [2]
    assert step["is_init"].tolist() == [True]


@pytest.mark.parametrize(
    "stage", [RewardSum, StepCounter, lambda: CatFrames(2, -1, ["observation"])]
)
def test_a_step_without_a_reset_starts_an_episode(stage: Callable[[], Transform]) -> None:
    action = TensorDict(action=torch.zeros(1))
    following = TransformedEnv(GymEnv("Pendulum-v1"), stage()).step(action)["next"]
    for key in set(following.keys()) & {"episode_reward", "step_count"}:
        assert following[key].shape == (1,)
    with hooks_only():
        other = TransformedEnv(GymEnv("Pendulum-v1"), stage()).step(
            TensorDict(action=torch.zeros(1))
        )
    assert set(following.keys()) == set(other["next"].keys())


# Results belong to the caller


ENVS: dict[str, Callable[[], EnvBase]] = {
    "single": lambda: GymEnv("Pendulum-v1"),
    "vector": lambda: GymEnv("Pendulum-v1", num_envs=2),
    "native": lambda: PendulumEnv(batch_size=[2]),
    "counting": lambda: CountingEnv(batch_size=(2,)),
}


def scribble(tensordict: TensorDictBase) -> None:
    for value in cast("Iterator[torch.Tensor]", tensordict.values(True, True)):
        value.fill_(True) if value.dtype is torch.bool else value.fill_(99)


@pytest.mark.parametrize("env", sorted(ENVS))
def test_writing_to_results_changes_no_later_step(env: str) -> None:
    runs = []
    for spoil in (False, True):
        chain = Compose(
            RewardClipping(),
            StepCounter(7),
            RewardSum(),
            RenameTransform(["episode_reward"], ["renamed_sum"]),
            InitTracker(),
            CatFrames(3, -1, in_keys=["observation"], out_keys=["stack"]),
        )
        made = TransformedEnv(ENVS[env](), chain)
        made.set_seed(3)
        torch.manual_seed(3)
        current, steps = made.reset(), []
        for _ in range(10):
            current = made.rand_step(current)
            steps.append(current["next"].clone())
            following = made.step_mdp(current).clone()
            if spoil:
                scribble(current)
            reset = made.maybe_reset(following)
            current = reset.clone()
            if spoil:
                scribble(reset)
        runs.append(torch.stack(steps))
        made.close()
    assert_same(runs[1], runs[0])

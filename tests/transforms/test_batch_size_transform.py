"""Values, shapes and errors of ``BatchSizeTransform``."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, cast

import pytest
import torch
from tensordict import TensorDict, TensorDictBase

from tdx import (
    BatchSizeTransform,
    CatFrames,
    Compose,
    GymEnv,
    InitTracker,
    RewardSum,
    StepCounter,
    TensorDictPrimer,
    TransformedEnv,
    Unbounded,
    check_env_specs,
)
from tdx.core.envs import EnvBase
from tdx.foundation.errors import ArgumentError, ChainError, TdxError
from tdx.specs import Composite
from tdx.transforms import Transform
from tests.transforms.envs import RowsEnv
from tests.transforms.fixed_rollouts import assert_same, fixed_rollout

# BatchSizeTransform


def halves() -> BatchSizeTransform:
    return BatchSizeTransform(batch_size=[2, 2])


def stages() -> list[Transform]:
    return [
        RewardSum(),
        StepCounter(),
        CatFrames(2, -1, ["observation"]),
        InitTracker(),
        CatFrames(2, -1, ["precise"]),
        TensorDictPrimer(h=Unbounded((2,))),
        RewardSum(["reward"], ["again"]),
    ]


class AnySize(EnvBase):
    """Steps TensorDicts of any batch size."""

    def __init__(self) -> None:
        super().__init__()
        self._batch_locked = False
        self.observation_spec = Composite(observation=Unbounded((3,)))
        self.action_spec = Unbounded((1,))

    def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
        size = self.batch_size if tensordict is None else tensordict.batch_size
        return TensorDict(observation=torch.rand(*size, 3), batch_size=size)

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        size = tensordict.batch_size
        flags, rewards = torch.zeros(*size, 1, dtype=torch.bool), torch.ones(*size, 1)
        seen = torch.rand(*size, 3)
        return TensorDict(observation=seen, reward=rewards, done=flags, batch_size=size)

    def _set_seed(self, seed: int | None) -> None:
        return None


@pytest.mark.parametrize("place", range(8))
def test_reshaped_batch_has_the_same_rows(place: int) -> None:
    plain = TransformedEnv(RowsEnv((4,)), Compose(*stages()))
    chain = [*stages()[:place], halves(), *stages()[place:]]
    env = TransformedEnv(RowsEnv((4,)), Compose(*chain))
    assert env.batch_size == (2, 2)
    assert_same(fixed_rollout(env).reshape(4, 8), fixed_rollout(plain))
    check_env_specs(env)


def test_a_single_env_becomes_a_batch_of_one() -> None:
    env = TransformedEnv(GymEnv("CartPole-v1"), BatchSizeTransform(batch_size=[1]))
    assert env.action_spec.shape == (1, 2)
    assert env.rollout(5, break_when_any_done=False).shape == (1, 5)
    check_env_specs(env)


@pytest.mark.parametrize(
    "reshape",
    [
        lambda td: td.reshape(2, 2),
        lambda td: td.unflatten(0, (2, 2)),
        lambda td: td.unsqueeze(0).reshape(2, 2, 1).squeeze(-1),
    ],
)
def test_the_shape_as_a_function(reshape: Callable[[TensorDictBase], TensorDictBase]) -> None:
    env = TransformedEnv(RowsEnv((4,)), BatchSizeTransform(reshape_fn=reshape))
    assert_same(fixed_rollout(env), fixed_rollout(TransformedEnv(RowsEnv((4,)), halves())))


def test_round_trip() -> None:
    back = BatchSizeTransform(reshape_fn=lambda td: td.flatten(0, 1))
    env = TransformedEnv(TransformedEnv(RowsEnv((4,)), halves()), back)
    assert_same(fixed_rollout(env), fixed_rollout(RowsEnv((4,))))
    assert_same(
        fixed_rollout(TransformedEnv(RowsEnv((4,)), Compose(Compose(halves()), back.clone()))),
        fixed_rollout(RowsEnv((4,))),
    )


def test_unlocked_env_gets_the_requested_rows() -> None:
    size = BatchSizeTransform(batch_size=[5])
    env = TransformedEnv(AnySize(), Compose(size, StepCounter(3)))
    rollout = env.rollout(4, break_when_any_done=False)
    assert rollout["next", "step_count"][0].flatten().tolist() == [1, 2, 3, 1]
    assert not rollout["observation"][0].equal(rollout["observation"][1])
    check_env_specs(env)


def test_custom_reset_function() -> None:
    def first(tensordict: Any, reset: TensorDictBase, env: EnvBase) -> TensorDictBase:
        return env.observation_spec.zero().update(env.full_done_spec.zero())

    size = BatchSizeTransform(batch_size=[5], reset_func=first, env_kwarg=True)
    env = TransformedEnv(AnySize(), size)
    assert env.reset()["observation"].tolist() == [[0.0] * 3] * 5
    wrong = BatchSizeTransform(batch_size=[5], reset_func=lambda given, reset: reset[:2])
    with pytest.raises(ArgumentError, match=r"reset_func returned \(2,\)"):
        TransformedEnv(AnySize(), wrong).reset()


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (BatchSizeTransform, ArgumentError, "neither of batch_size and reshape_fn"),
        (
            partial(BatchSizeTransform, batch_size=[1], reshape_fn=lambda td: td),
            ArgumentError,
            "both of batch_size and reshape_fn",
        ),
        (
            partial(BatchSizeTransform, batch_size=cast(Any, ["a"])),
            ArgumentError,
            "list of integers",
        ),
        (partial(BatchSizeTransform, batch_size=[-1]), ArgumentError, "list of integers"),
        (partial(BatchSizeTransform, batch_size=[3]), ChainError, "3 rows, the env's .4,. has 4"),
        (
            partial(BatchSizeTransform, reshape_fn=lambda td: td[torch.tensor([1, 0, 2, 3])]),
            ArgumentError,
            "changes the order of the rows",
        ),
    ],
)
def test_incompatible_sizes(
    make: Callable[[], BatchSizeTransform], error: type[TdxError], message: str
) -> None:
    with pytest.raises(error, match=message):
        TransformedEnv(RowsEnv((4,)), make())


def test_a_function_reshapes_stored_data() -> None:
    stored = TensorDict(observation=torch.arange(6.0).reshape(2, 3), batch_size=[2, 3])
    flat = BatchSizeTransform(reshape_fn=lambda td: td.reshape(6))
    assert flat(stored)["observation"].tolist() == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]
    assert BatchSizeTransform(batch_size=[2])(stored).batch_size == (2, 3)

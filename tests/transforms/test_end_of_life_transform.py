"""``EndOfLifeTransform``: lost lives."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from tensordict import TensorDict

from tdx import (
    EndOfLifeTransform,
    GymWrapper,
    RenameTransform,
    SerialEnv,
    StepCounter,
    TransformedEnv,
    check_env_specs,
)
from tdx.core.envs import EnvBase
from tdx.foundation.errors import ArgumentError, ChainError, EnvError, KeyNotFoundError
from tests.transforms.envs import RowsEnv


class Ale:
    """Source of the lives of an Atari env."""

    count = 0

    def lives(self) -> int:
        return 3 - self.count // 2


class Game(gymnasium.Env[Any, Any]):
    """Env that loses a life every two steps and ends with the last one."""

    observation_space = gymnasium.spaces.Box(-9.0, 9.0, (1,), np.float32)
    action_space = gymnasium.spaces.Box(-2.0, 2.0, (1,), np.float32)

    def __init__(self) -> None:
        self.ale = Ale()

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.ale.count = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        self.ale.count += 1
        return np.zeros(1, np.float32), 1.0, self.ale.lives() == 0, False, {}


def played(**kwargs: Any) -> TransformedEnv:
    return TransformedEnv(GymWrapper(Game()), EndOfLifeTransform(**kwargs))


def test_lives_of_an_atari_env() -> None:
    rollout = played().rollout(8, break_when_any_done=False)
    assert rollout["lives"].tolist() == [3, 3, 2, 2, 1, 1, 3, 3]
    assert rollout["next", "lives"].tolist() == [3, 2, 2, 1, 1, 0, 3, 2]
    lost = rollout["next", "end-of-life"].flatten().tolist()
    assert lost == [False, True, False, True, False, True, False, True]
    assert not rollout["end-of-life"][0]
    assert rollout["next", "done"].sum() == 1
    check_env_specs(played(eol_key=("nested", "eol"), lives_key=("nested", "lives")))


def test_an_episode_that_is_truncated() -> None:
    env = TransformedEnv(GymWrapper(Game()), StepCounter(3)).append_transform(EndOfLifeTransform())
    assert env.rollout(9)["next", "end-of-life"].flatten().tolist() == [False, True, True]


@pytest.mark.parametrize("outside", [True, False])
def test_in_a_batch(outside: bool) -> None:
    env: EnvBase
    if outside:
        env = TransformedEnv(SerialEnv(2, lambda: GymWrapper(Game())), EndOfLifeTransform())
    else:
        env = SerialEnv(2, played)
    rollout = env.rollout(4)
    assert rollout["next", "lives"].tolist() == [[3, 2, 2, 1]] * 2
    assert rollout["next", "end-of-life"].squeeze(-1).sum(1).tolist() == [2, 2]


def test_a_renamed_number_of_lives() -> None:
    env = played().append_transform(RenameTransform(["lives"], ["chances"]))
    assert env.rollout(4)["next", "end-of-life"].sum() == 2


def test_keys_of_a_loss() -> None:
    class Loss:
        keys: dict[str, Any]

        def set_keys(self, **keys: Any) -> None:
            self.keys = keys

    loss = Loss()
    EndOfLifeTransform("eol").register_keys(loss)
    assert loss.keys == {"done": "eol", "terminated": "eol"}


def test_an_env_without_lives() -> None:
    env = TransformedEnv(RowsEnv(), EndOfLifeTransform())
    with pytest.raises(EnvError, match=r"no attribute 'unwrapped\.ale\.lives'") as caught:
        env.reset()
    assert "eol_attribute" in str(caught.value.hint)
    with pytest.raises(KeyNotFoundError, match="no key 'end'"):
        TransformedEnv(RowsEnv(), EndOfLifeTransform(done_key="end")).output_spec  # noqa: B018
    with pytest.raises(ChainError, match="not part of one"):
        EndOfLifeTransform()._step(TensorDict(), TensorDict())


@pytest.mark.parametrize("path", ["step.__globals__.clear", "_reset", "unwrapped..lives", "a()"])
def test_only_public_attributes_are_called(path: str) -> None:
    with pytest.raises(ArgumentError, match="not public"):
        EndOfLifeTransform(eol_attribute=path)

"""Observations and rewards outside their space stop the rollout at that step."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

from tdx import RewardSum, TransformedEnv
from tdx.core.spec_check import check_env_specs
from tdx.envs import EnvBase, ParallelEnv, SerialEnv
from tdx.envs.gym import GymEnv, GymWrapper
from tdx.envs.gym.values import WrongValueError, describe, to_array
from tdx.foundation.errors import EnvError, ExitCode
from tests.envs.gym.mocks import FAULTS, SpaceEnv, WrongValuesEnv

AT = 5
REWARDS = tuple(fault for fault in FAULTS if fault.startswith("reward"))
CASES = [
    *((fault, nested) for nested in (False, True) for fault in FAULTS),
    ("missing", True),
]


def wrong(**kwargs: Any) -> GymWrapper:
    return GymWrapper(WrongValuesEnv(**kwargs))


def env_of(kind: str, **kwargs: Any) -> EnvBase:
    if kind == "single":
        return wrong(**kwargs)
    if kind in ("serial", "parallel"):
        batch: Any = SerialEnv if kind == "serial" else ParallelEnv
        made: EnvBase = batch(2, partial(wrong, **kwargs))
        return made
    mode = {"sync": "sync", "async": "async"}[kind]
    return GymEnv("WrongValues-v0", num_envs=2, vectorization_mode=mode, **kwargs)


@pytest.fixture(autouse=True)
def registered(register_env: Callable[[str, Any], None]) -> None:
    register_env("WrongValues-v0", WrongValuesEnv)


def stopped_at(env: EnvBase, policy: Any = None) -> tuple[int, EnvError]:
    """Return the number of steps before the error, and the error."""
    kept = 0
    try:
        for chunk in env.iter_rollout(20, policy, chunk_steps=4):
            kept += chunk.shape[-1]
            assert all(torch.isfinite(leaf).all() for leaf in chunk["next"].values(True, True))
    except EnvError as error:
        return kept, error
    finally:
        env.close()
    raise AssertionError("no error")


def check_error(error: EnvError, fault: str, nested: bool) -> None:
    key = "reward" if fault in REWARDS else "b" if nested else "observation"
    assert (error.where.key, error.where.step) == (key, AT)
    assert error.where.env
    assert error.hint
    assert error.exit_code == ExitCode.ENVIRONMENT
    assert "returned" in error.message


@pytest.mark.parametrize("planned", [True, False], ids=["planned", "eager"])
@pytest.mark.parametrize("kind", ["single", "serial", "sync"])
@pytest.mark.parametrize(("fault", "nested"), CASES)
def test_a_wrong_value_stops_the_rollout_at_its_step(
    kind: str, fault: str, nested: bool, planned: bool
) -> None:
    env = env_of(kind, fault=fault, nested=nested, at=AT, length=2)
    env.planned = planned
    kept, error = stopped_at(env)
    assert kept == AT
    check_error(error, fault, nested)


@pytest.mark.parametrize("kind", ["async", "parallel"])
@pytest.mark.parametrize(("fault", "nested"), [("none", False), ("missing", True)])
def test_a_wrong_value_in_another_process(kind: str, fault: str, nested: bool) -> None:
    kept, error = stopped_at(env_of(kind, fault=fault, nested=nested, at=AT, length=2))
    assert kept == AT
    check_error(error, fault, nested)


@pytest.mark.parametrize("kind", ["single", "serial"])
@pytest.mark.parametrize("fault", FAULTS)
def test_a_wrong_value_in_a_rollout_with_a_policy(kind: str, fault: str) -> None:
    env = env_of(kind, fault=fault, at=AT, length=2)
    action = env.full_action_spec.zero()

    class Policy(torch.nn.Module):
        in_keys, out_keys = ("observation",), ("action",)

        def forward(self, tensordict: Any) -> Any:
            return tensordict.set("action", action["action"].clone())

    kept, error = stopped_at(env, Policy())
    assert kept == AT
    check_error(error, fault, False)


def test_double_observations_of_a_float_space_overflow_at_their_step() -> None:
    for fault in ("overflow", "none"):
        kept, error = stopped_at(wrong(fault=fault, at=AT, dtype="float64"))
        assert kept == AT
        check_error(error, fault, False)
    rollout = wrong(at=-9, dtype="float64").rollout(6)
    assert rollout["next", "observation"].dtype == torch.float32
    assert rollout["next", "observation"][:, 0].tolist() == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("kind", ["single", "serial", "sync"])
@pytest.mark.parametrize("planned", [True, False], ids=["planned", "eager"])
def test_a_wrong_value_in_a_reset_keeps_the_steps_before(kind: str, planned: bool) -> None:
    env = env_of(kind, fault="none", at=-3, length=2)
    env.planned = planned
    kept, error = stopped_at(env)
    assert kept == 4
    assert (error.where.key, error.where.step) == ("observation", 4)
    assert "reset" in error.message


def test_a_wrong_value_in_the_first_reset() -> None:
    with pytest.raises(EnvError, match="key 'observation': reset returned None instead of a float"):
        wrong(at=-1).reset()


def test_nan_and_infinity_of_the_env_itself_are_values() -> None:
    class Odd(WrongValuesEnv):
        def step(self, action: Any) -> Any:
            _, _, *rest = super().step(action)
            return (np.array([np.nan, np.inf, -np.inf]), float("nan"), *rest)

    rollout = GymWrapper(Odd(at=-9)).rollout(3)
    assert rollout["next", "observation"].isfinite().sum() == 0
    assert rollout["next", "reward"].isnan().all()


def test_check_env_specs_names_the_key_and_the_step() -> None:
    with pytest.raises(EnvError) as caught:
        check_env_specs(wrong(fault="reward none", at=0))
    assert (caught.value.where.key, caught.value.where.step) == ("reward", 0)
    with pytest.raises(EnvError) as caught:
        check_env_specs(TransformedEnv(wrong(fault="reward none", at=2), RewardSum()))
    assert (caught.value.where.key, caught.value.where.step) == ("reward", 2)


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (None, "None instead of a float32 array of shape (2,)"),
        ([1, None], "None instead of a float32 array of shape (2,)"),
        ([[1], [2, 3]], "a list instead of a float32 array of shape (2,)"),
        ("ab", "a str instead of a float32 array of shape (2,)"),
        (np.zeros(3), "a float64 array of shape (3,) instead of shape (2,)"),
        (np.array([0, 1e39]), "1e+39, which float32 cannot represent"),
    ],
)
def test_messages_for_wrong_values(value: Any, problem: str) -> None:
    with pytest.raises(WrongValueError) as caught:
        to_array(value, np.dtype(np.float32), (2,))
    assert caught.value.problem == problem


@pytest.mark.parametrize("value", [256, -1, float("nan"), 2**40])
def test_integers_do_not_wrap_around(value: Any) -> None:
    with pytest.raises(WrongValueError):
        to_array(np.asarray([value]), np.dtype(np.uint8), (1,))


def test_describe_value() -> None:
    values: tuple[Any, ...] = (None, 1, {})
    assert [describe(value) for value in values] == ["None", "an int", "a dict"]


@pytest.mark.parametrize(
    ("space", "value"),
    [
        (spaces.Discrete(3), None),
        (spaces.Discrete(3), -1),
        (spaces.Discrete(3), 3),
        (spaces.MultiDiscrete([2, 3]), np.array([2, 0])),
        (spaces.MultiDiscrete([2, 3]), np.array([0, -1])),
        (spaces.MultiDiscrete([2, 3]), None),
        (spaces.MultiBinary(3), np.zeros(2)),
        (spaces.Tuple([spaces.Discrete(2), spaces.MultiBinary(2)]), (1,)),
        (spaces.Tuple([spaces.Discrete(2), spaces.MultiBinary(2)]), None),
        (spaces.Text(4), None),
        (spaces.Dict(a=spaces.Discrete(2)), None),
    ],
)
@pytest.mark.parametrize("batched", [False, True])
def test_a_value_outside_its_space_that_cannot_be_stored(
    space: spaces.Space[Any], value: Any, batched: bool
) -> None:
    class Odd(SpaceEnv):
        def step(self, action: Any) -> Any:
            _, *rest = super().step(action)
            return (value, *rest)

    if batched:
        from tdx.envs.gym.vector import make_vector_env
        from tdx.envs.gym.wrappers import CheckedValues

        env = GymWrapper(make_vector_env([lambda: CheckedValues(Odd(space), 0)], "sync"))
    else:
        env = GymWrapper(Odd(space))
    with pytest.raises(EnvError, match=r"step(?: of env 0)? returned") as caught:
        env.rollout(2)
    assert caught.value.where.step == 0
    assert caught.value.hint


class TwoDoubles(gymnasium.Env[Any, Any]):
    """Env with float64 entries of float32 spaces, which overflow at given steps.

    Args:
        ends: Step at which each entry overflows, by name.
    """

    action_space = spaces.Discrete(2)

    def __init__(self, **ends: int) -> None:
        self.ends, self.count = ends, 0
        large = spaces.Box(-np.inf, np.inf, (2,), np.float32)
        self.observation_space = spaces.Dict(
            {"kind": spaces.Discrete(3), **dict.fromkeys(ends, large)}
        )

    def _observed(self) -> dict[str, Any]:
        values = {name: 1e300 if self.count == end else 0.1 for name, end in self.ends.items()}
        return {"kind": self.count % 3, **{name: np.full(2, v) for name, v in values.items()}}

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.count = 0
        return self._observed(), {}

    def step(self, action: Any) -> Any:
        self.count += 1
        return self._observed(), 1.0, self.count == 9, False, {}


@pytest.mark.parametrize("ends", [(3, 6), (6, 3), (4, 4), (6, 99)])
@pytest.mark.parametrize("rows", [1, 2])
def test_the_first_entry_that_overflows_stops_the_rollout(ends: tuple[int, int], rows: int) -> None:
    def make(planned: bool) -> EnvBase:
        def single() -> EnvBase:
            return GymWrapper(TwoDoubles(a=ends[0], b=ends[1]))

        base = single() if rows == 1 else SerialEnv(rows, single)
        return TransformedEnv(base, RewardSum(), planned=planned)

    kept, error = stopped_at(make(True))
    expected, eager_error = stopped_at(make(False))
    assert kept == expected == min(ends) - 1
    assert error.where == eager_error.where


@pytest.mark.parametrize("rows", [1, 2])
def test_entries_of_several_kinds_are_those_of_an_eager_rollout(rows: int) -> None:
    def rolled_out(planned: bool) -> Any:
        def single() -> EnvBase:
            return GymWrapper(TwoDoubles(a=99, b=99))

        base = single() if rows == 1 else SerialEnv(rows, single)
        env = TransformedEnv(base, RewardSum(), planned=planned)
        torch.manual_seed(0)
        return env.rollout(30, break_when_any_done=False)

    ours, theirs = rolled_out(True), rolled_out(False)
    assert set(ours.keys(True, True)) == set(theirs.keys(True, True))
    for key in theirs.keys(True, True):
        assert ours[key].dtype == theirs[key].dtype
        assert torch.equal(ours[key], theirs[key]), key

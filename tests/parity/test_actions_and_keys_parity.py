"""Discrete and flat actions, casts, dropped keys and returns against the oracle's."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

import tdx
from tests.parity.twins import (
    ORACLE,
    Doubles,
    Stages,
    assert_same_specs,
    assert_same_values,
    chained,
    fixed_rollout,
    leaves,
)
from tests.programs import sampled

pytestmark = pytest.mark.filterwarnings("ignore")

PENDULUM: dict[str, Stages] = {
    "BinarizeReward": lambda m: [m.RewardScaling(3.0, 1.0), m.BinarizeReward()],
    "BinarizeReward-key": lambda m: [m.BinarizeReward(["reward"], ["positive"])],
    "DTypeCast": lambda m: [m.DTypeCastTransform(torch.float32, torch.float16)],
    "DTypeCast-up": lambda m: [m.DTypeCastTransform(torch.float32, torch.float64)],
    "DTypeCast-one": lambda m: [
        m.DTypeCastTransform(torch.float32, torch.float64, ["observation"])
    ],
    "DTypeCast-none": lambda m: [m.DTypeCastTransform(torch.float64, torch.float32)],
    "DeviceCast": lambda m: [m.DeviceCastTransform("cpu")],
    "Exclude": lambda m: [m.StepCounter(), m.ExcludeTransform("observation", "truncated")],
    "Exclude-reward": lambda m: [m.ExcludeTransform("reward")],
    "Exclude-done": lambda m: [m.ExcludeTransform("done")],
    "FlattenAction": lambda m: [m.FlattenAction(-1, -1)],
    "Select": lambda m: [m.SelectTransform("observation")],
    "Select-none": lambda m: [m.SelectTransform()],
    "Select-no-reward": lambda m: [m.SelectTransform("observation", keep_rewards=False)],
    "Select-one-flag": lambda m: [
        m.SelectTransform("observation", "reward", "done", keep_dones=False)
    ],
}


@pytest.mark.parametrize("workers", [None, 2], ids=["single", "serial"])
@pytest.mark.parametrize("stages", [pytest.param(each, id=name) for name, each in PENDULUM.items()])
@sampled(3)
def test_specs_and_rollouts(stages: Stages, workers: int | None) -> None:
    ours, theirs = (chained(m, "Pendulum-v1", stages, workers) for m in (tdx, ORACLE))
    assert_same_specs(ours, theirs)
    assert_same_values(fixed_rollout(ours, 12), fixed_rollout(theirs, 12))


@pytest.mark.parametrize(
    "stages",
    [
        lambda m: [m.DTypeCastTransform(torch.float64, torch.float32)],
        lambda m: [m.DTypeCastTransform(torch.float64, torch.float32, ["observation"], ["short"])],
        lambda m: [m.DTypeCastTransform(torch.float64, torch.float16, in_keys_inv=["action"])],
    ],
    ids=["all", "one", "inverse"],
)
def test_casts_of_doubles(stages: Stages) -> None:
    ours, theirs = (
        m.TransformedEnv(m.GymWrapper(Doubles()), m.Compose(*stages(m))) for m in (tdx, ORACLE)
    )
    assert_same_specs(ours, theirs)
    assert_same_values(fixed_rollout(ours, 12), fixed_rollout(theirs, 12))


# Bins


class Bins:
    """A policy of drawn bins, as numbers or one-hot rows, the same for both libraries."""

    def __init__(self, env: Any, counts: list[int], categorical: bool) -> None:
        ((self.key, self.spec),) = leaves(env.full_action_spec).items()
        self.counts, self.categorical = counts, categorical
        self.generator = torch.Generator().manual_seed(11)

    def __call__(self, tensordict: TensorDictBase) -> TensorDictBase:
        lead = self.spec.shape[:-1]
        columns = [torch.randint(n, lead, generator=self.generator) for n in self.counts]
        return tensordict.set(self.key, self._encoded(columns))

    def _encoded(self, columns: list[Tensor]) -> Tensor:
        if self.categorical:
            return torch.stack(columns, -1)
        rows = [
            torch.nn.functional.one_hot(column, n)
            for column, n in zip(columns, self.counts, strict=True)
        ]
        return torch.cat(rows, -1).bool()


def rolled(env: Any, counts: list[int], categorical: bool) -> TensorDictBase:
    env.set_seed(5, static_seed=True)
    if isinstance(env, tdx.TransformedEnv):
        env.reset()
    result = env.rollout(8, Bins(env, counts, categorical), break_when_any_done=False)
    assert isinstance(result, TensorDictBase)
    return result


@pytest.mark.parametrize("sampling", ["MEDIAN", "LOW", "HIGH"])
@pytest.mark.parametrize("categorical", [True, False], ids=["number", "one-hot"])
@pytest.mark.parametrize(
    ("env_id", "given", "counts"),
    [
        ("Pendulum-v1", 5, [5]),
        ("Pendulum-v1", torch.tensor([7]), [7]),
        ("HalfCheetah-v5", 4, [4] * 6),
        ("HalfCheetah-v5", torch.arange(5, 11), [5, 6, 7, 8, 9, 10]),
    ],
    ids=["one", "one-tensor", "six", "six-tensor"],
)
def test_bins(env_id: str, given: Any, counts: list[int], categorical: bool, sampling: str) -> None:
    def env(m: Any) -> Any:
        strategy = m.ActionDiscretizer.SamplingStrategy[sampling]
        transform = m.ActionDiscretizer(
            given, out_action_key="bin", sampling=strategy, categorical=categorical
        )
        # In a Compose the oracle does not write the continuous action.
        return m.TransformedEnv(m.GymEnv(env_id), transform)

    ours, theirs = env(tdx), env(ORACLE)
    assert_same_specs(ours, theirs)
    found, wanted = (rolled(each, counts, categorical) for each in (ours, theirs))
    assert_same_values(found, wanted, rtol=1e-3, atol=1e-3)


def test_bins_of_a_batch() -> None:
    def stages(m: Any) -> list[Any]:
        return [m.ActionDiscretizer(4)]

    ours, theirs = (chained(m, "Pendulum-v1", stages, 2) for m in (tdx, ORACLE))
    assert ours.action_spec.shape == theirs.action_spec.shape
    found, wanted = (rolled(env, [4], True) for env in (ours, theirs))
    assert_same_values(found, wanted, rtol=1e-4, atol=1e-4)


# Flat actions, returns and masks


def test_flat_actions_in_stored_data() -> None:
    stored = torch.arange(24.0).reshape(4, 2, 3)
    for m in (tdx, ORACLE):
        flatten = m.FlattenAction(action_shape=[2, 3])
        flat = flatten(TensorDict(action=stored, batch_size=[4]))["action"]
        assert torch.equal(flat, stored.reshape(4, 6))
        assert torch.equal(flatten.inv(TensorDict(action=flat, batch_size=[4]))["action"], stored)


@pytest.mark.parametrize("gamma", [1.0, 0.9, torch.tensor(0.5)])
def test_returns(gamma: float | Tensor) -> None:
    generator = torch.Generator().manual_seed(1)
    reward = torch.randn(3, 40, 1, generator=generator)
    done = torch.rand(3, 40, 1, generator=generator) < 0.1
    stored = TensorDict({"next": {"reward": reward, "done": done}}, batch_size=[3, 40])
    ours, theirs = (
        m.Reward2GoTransform(gamma, out_keys=["returns"]).inv(stored.clone())["returns"]
        for m in (tdx, ORACLE)
    )
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


class Matrices(Doubles):
    """Takes matrices of actions."""

    action_space = gymnasium.spaces.Box(-2.0, 2.0, (2, 3), np.float64)


def test_flat_actions_of_an_env() -> None:
    ours, theirs = (
        m.TransformedEnv(m.GymWrapper(Matrices()), m.FlattenAction()) for m in (tdx, ORACLE)
    )
    assert_same_specs(ours, theirs)
    assert_same_values(fixed_rollout(ours, 5), fixed_rollout(theirs, 5))


def masked_env(m: Any) -> Any:
    """An env that forbids what was last chosen."""

    class Masked(m.EnvBase):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.action_spec = m.Categorical(4)
            self.observation_spec = m.Composite(action_mask=m.Binary(4, dtype=torch.bool))
            self.reward_spec = m.Unbounded(1)

        def _reset(self, tensordict: Any = None, **kwargs: Any) -> TensorDictBase:
            return TensorDict(action_mask=torch.ones(4, dtype=torch.bool))

        def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
            mask = torch.arange(4) != tensordict["action"]
            done = torch.zeros(1, dtype=torch.bool)
            return TensorDict(action_mask=mask, reward=torch.ones(1), done=done, terminated=done)

        def _set_seed(self, seed: int | None) -> None:
            return None

    return m.TransformedEnv(Masked(), m.ActionMask())


def test_masks_of_the_action_spec() -> None:
    ours, theirs = masked_env(tdx), masked_env(ORACLE)
    currents = [ours.reset(), theirs.reset()]
    for action in (0, 2, 3):
        for index, env in enumerate((ours, theirs)):
            stepped = env.step(currents[index].set("action", torch.tensor(action)))
            currents[index] = env.step_mdp(stepped)
        assert torch.equal(ours.action_spec.mask, theirs.action_spec.mask)
        for value in torch.arange(4):
            assert ours.action_spec.is_in(value) == theirs.action_spec.is_in(value)

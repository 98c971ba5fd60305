"""Rollouts step an env through the wrappers of ``gymnasium.make``, as single steps do."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from gymnasium.wrappers import OrderEnforcing, TimeLimit
from hypothesis import given, settings
from hypothesis import strategies as st
from tensordict import TensorDict
from tensordict.nn import TensorDictModule

import tdx
from tests.programs import examples

ENV = "CartPole-v1"


def make(planned: bool = True, rows: int = 0, **options: Any) -> tdx.EnvBase:
    """Return an env whose episodes end early, sometimes by the time limit."""

    def single() -> tdx.EnvBase:
        return tdx.GymEnv(ENV, max_episode_steps=15, **options)

    base = tdx.SerialEnv(rows, single) if rows else single()
    return tdx.TransformedEnv(base, tdx.StepCounter(), planned=planned)


def time_limits(env: Any) -> list[Any]:
    """Return the wrappers that end the episodes of the inner envs."""
    base = env.base_env
    inner = base._envs if isinstance(base, tdx.SerialEnv) else [base]
    return [each._env for each in inner]


def elapsed(env: Any) -> list[int]:
    return [limit._elapsed_steps for limit in time_limits(env)]


@settings(max_examples=examples(40))
@given(chunk=st.integers(1, 40), rows=st.sampled_from([0, 3]), seed=st.integers(0, 99))
def test_chunks_equal_single_steps(chunk: int, rows: int, seed: int) -> None:
    results, ends = [], []
    for planned in (True, False):
        env = make(planned, rows)
        env.set_seed(seed)
        torch.manual_seed(seed)
        parts = list(env.iter_rollout(60, chunk_steps=chunk))
        results.append(TensorDict.cat(parts, -1))
        ends.append(elapsed(env))
    assert bool((results[0] == results[1]).all())
    assert bool(results[0]["next", "truncated"].any())
    assert ends[0] == ends[1]


def test_episode_continues_after_a_rollout() -> None:
    env = make()
    env.set_seed(0)
    root = tdx.step_mdp(env.rollout(4)[-1])
    assert elapsed(env) == [4]
    env.step(env.rand_action(root))
    assert elapsed(env) == [5]


def test_policies_see_the_time_limit() -> None:
    def alternate(step_count: torch.Tensor) -> torch.Tensor:
        return (step_count % 2).squeeze(-1)

    base = tdx.GymEnv("Acrobot-v1", max_episode_steps=7, categorical_action_encoding=True)
    env = tdx.TransformedEnv(base, tdx.StepCounter())
    env.set_seed(0)
    policy = TensorDictModule(alternate, in_keys=["step_count"], out_keys=["action"])
    data = env.rollout(20, policy, break_when_any_done=False)
    assert data["next", "truncated"].flatten().nonzero().flatten().tolist() == [6, 13]
    assert data["action"].tolist() == [0, 1, 0, 1, 0, 1, 0] * 2 + [0, 1, 0, 1, 0, 1]
    assert elapsed(env) == [6]


def test_failing_step_is_not_counted() -> None:
    env = make()
    env.set_seed(0)
    env.rollout(3)
    inner = time_limits(env)[0].unwrapped
    inner.step = lambda action: 1 / 0
    with pytest.raises(tdx.EnvError, match="division by zero"):
        env.rollout(5, tensordict=env.reset(), auto_reset=False)
    assert elapsed(env) == [0]


@pytest.mark.parametrize("wrapper", [TimeLimit, OrderEnforcing])
def test_replaced_step_is_called(wrapper: type, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []
    original: Any = wrapper.step  # type: ignore[attr-defined]

    def step(self: Any, action: Any) -> Any:
        calls.append(action)
        return original(self, action)

    env = make()
    env.rollout(5)
    monkeypatch.setattr(wrapper, "step", step)
    env.rollout(5)
    assert len(calls) == 5

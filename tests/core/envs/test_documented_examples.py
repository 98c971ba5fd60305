"""The examples of the documented EnvBase, under the new names."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import tensordict
import torch

from tdx import (
    Categorical,
    Composite,
    GymEnv,
    SerialEnv,
    StepCounter,
    TransformedEnv,
    Unbounded,
)

ACTION = """\
BoundedContinuous(
    shape=torch.Size([1]),
    space=ContinuousBox(
        low=Tensor(shape=torch.Size([1]), device=cpu, dtype=torch.float32, contiguous=True),
        high=Tensor(shape=torch.Size([1]), device=cpu, dtype=torch.float32, contiguous=True)),
    device=cpu,
    dtype=torch.float32,
    domain=continuous)"""

OBSERVATION = """\
Composite(
    observation: BoundedContinuous(
        shape=torch.Size([3]),
        space=ContinuousBox(
            low=Tensor(shape=torch.Size([3]), device=cpu, dtype=torch.float32, contiguous=True),
            high=Tensor(shape=torch.Size([3]), device=cpu, dtype=torch.float32, contiguous=True)),
        device=cpu,
        dtype=torch.float32,
        domain=continuous), device=cpu, shape=torch.Size([]))"""

UNBOUNDED = ACTION.replace("BoundedContinuous", "UnboundedContinuous")

SCALAR_FLAG = """\
Categorical(
    shape=torch.Size([]),
    space=CategoricalBox(n=2),
    device=cpu,
    dtype=torch.bool,
    domain=discrete)"""

FLAG = SCALAR_FLAG.replace("[]", "[1]")

STATE = "Composite(\n, device=cpu, shape=torch.Size([]))"

ROLLOUT = """\
TensorDict(
    fields={
        action: Tensor(shape=torch.Size([20, 1]), device=cpu, dtype=torch.float32, is_shared=False),
        done: Tensor(shape=torch.Size([20, 1]), device=cpu, dtype=torch.bool, is_shared=False),
        next: TensorDict(
            fields={
                done: Tensor(shape=torch.Size([20, 1]), device=cpu, dtype=torch.bool, is_shared=False),
                observation: Tensor(shape=torch.Size([20, 3]), device=cpu, dtype=torch.float32, is_shared=False),
                reward: Tensor(shape=torch.Size([20, 1]), device=cpu, dtype=torch.float32, is_shared=False),
                step_count: Tensor(shape=torch.Size([20, 1]), device=cpu, dtype=torch.int64, is_shared=False),
                terminated: Tensor(shape=torch.Size([20, 1]), device=cpu, dtype=torch.bool, is_shared=False),
                truncated: Tensor(shape=torch.Size([20, 1]), device=cpu, dtype=torch.bool, is_shared=False)},
            batch_size=torch.Size([20]),
            device=cpu,
            is_shared=False),
        observation: Tensor(shape=torch.Size([20, 3]), device=cpu, dtype=torch.float32, is_shared=False),
        step_count: Tensor(shape=torch.Size([20, 1]), device=cpu, dtype=torch.int64, is_shared=False),
        terminated: Tensor(shape=torch.Size([20, 1]), device=cpu, dtype=torch.bool, is_shared=False),
        truncated: Tensor(shape=torch.Size([20, 1]), device=cpu, dtype=torch.bool, is_shared=False)},
    batch_size=torch.Size([20]),
    device=cpu,
    is_shared=False)"""  # noqa: E501


def indented(text: str, name: str, by: int = 4) -> str:
    return " " * by + f"{name}: " + text.replace("\n", "\n" + " " * by)


def composite(*fields: str) -> str:
    return "Composite(\n" + ",\n".join(fields) + ", device=cpu, shape=torch.Size([]))"


@pytest.fixture
def env() -> Iterator[GymEnv]:
    made = GymEnv("Pendulum-v1")
    yield made
    made.close()


def test_the_batch_size_of_one_env_is_empty(env: GymEnv) -> None:
    assert env.batch_size == torch.Size([])


def test_specs_print_as_documented(env: GymEnv) -> None:
    assert str(env.action_spec) == ACTION
    assert str(env.observation_spec) == OBSERVATION
    assert str(env.reward_spec) == UNBOUNDED
    assert str(env.state_spec) == STATE
    assert str(env.full_action_spec) == composite(indented(ACTION, "action"))
    flags = [indented(FLAG, name) for name in ("done", "terminated", "truncated")]
    assert str(env.done_spec) == composite(*flags)


def test_input_and_output_specs_print_as_documented(env: GymEnv) -> None:
    action = composite(indented(ACTION, "action"))
    reward = composite(indented(UNBOUNDED, "reward"))
    flags = composite(*(indented(FLAG, name) for name in ("done", "terminated", "truncated")))
    assert str(env.input_spec) == composite(
        indented(STATE, "full_state_spec"), indented(action, "full_action_spec")
    )
    assert str(env.output_spec) == composite(
        indented(OBSERVATION, "full_observation_spec"),
        indented(reward, "full_reward_spec"),
        indented(flags, "full_done_spec"),
    )


@pytest.mark.parametrize("kind", ["action", "reward"])
def test_action_and_reward_specs_are_mutable(env: GymEnv, kind: str) -> None:
    setattr(env, f"{kind}_spec", Unbounded(1))
    assert str(getattr(env, f"{kind}_spec")) == UNBOUNDED
    setattr(env, f"{kind}_spec", Composite({"nested": {kind: Unbounded(1)}}))
    assert str(getattr(env, f"{kind}_spec")) == UNBOUNDED
    assert getattr(env, f"{kind}_keys") == [("nested", kind)]
    several = {"nested": {kind: Unbounded(1), f"another_{kind}": Categorical(1)}}
    setattr(env, f"{kind}_spec", Composite(several))
    other = SCALAR_FLAG.replace("n=2", "n=1").replace("torch.bool", "torch.int64")
    nested = composite(indented(UNBOUNDED, kind), indented(other, f"another_{kind}"))
    assert str(getattr(env, f"{kind}_spec")) == composite(indented(nested, "nested"))
    whole = env.input_spec if kind == "action" else env.output_spec
    assert whole[f"full_{kind}_spec"] == getattr(env, f"{kind}_spec")


def test_the_done_spec_is_mutable(env: GymEnv) -> None:
    env.done_spec = Categorical(2, dtype=torch.bool)
    assert str(env.done_spec) == SCALAR_FLAG
    env.done_spec = Composite({"nested": {"done": Categorical(2, dtype=torch.bool)}})
    assert str(env.done_spec) == SCALAR_FLAG
    flags = {name: Categorical(2, dtype=torch.bool) for name in ("done", "another_done")}
    env.done_spec = Composite({"nested": flags})
    nested = composite(*(indented(SCALAR_FLAG, name) for name in flags))
    assert str(env.done_spec) == composite(indented(nested, "nested"))
    assert str(env.output_spec["full_done_spec"]) == str(env.done_spec)


printed_by_old_tensordict = pytest.mark.skipif(
    tuple(map(int, tensordict.__version__.split(".")[:2])) >= (0, 15),
    reason="tensordict prints its TensorDicts another way from 0.15 on",
)


@printed_by_old_tensordict
def test_a_rollout_prints_as_documented() -> None:
    env = TransformedEnv(GymEnv("Pendulum-v1"), StepCounter(max_steps=20))
    rollout = env.rollout(max_steps=1000)
    assert str(rollout) == ROLLOUT
    assert rollout.names == ["time"]
    env.close()


@printed_by_old_tensordict
def test_a_rollout_of_a_batch_prints_as_documented() -> None:
    env = SerialEnv(3, lambda: TransformedEnv(GymEnv("Pendulum-v1"), StepCounter(max_steps=20)))
    assert str(env.rollout(max_steps=1000)) == ROLLOUT.replace("[20", "[3, 20")
    env.close()


def test_a_rollout_of_a_batch_is_a_block_or_lazy() -> None:
    env = SerialEnv(3, lambda: TransformedEnv(GymEnv("Pendulum-v1"), StepCounter(max_steps=20)))
    rollout = env.rollout(max_steps=1000)
    assert rollout.names == [None, "time"]
    lazy = env.rollout(4, return_contiguous=False)
    assert type(lazy).__name__ == "LazyStackedTensorDict"
    assert lazy.names == [None, "time"]
    assert lazy["next", "observation"].shape == (3, 4, 3)
    env.close()


def test_random_actions_and_steps(env: GymEnv) -> None:
    assert env.rand_action()["action"] in env.action_spec
    tensordict = env.reset()
    assert env.rand_action(tensordict) is tensordict
    stepped = env.rand_step(tensordict)
    assert stepped is tensordict
    assert stepped["next", "observation"] in env.observation_spec["observation"]
    env.reset()
    assert {"action", "next"} == set(env.rand_step().keys())

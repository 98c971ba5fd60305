"""The native envs against Gymnasium's, step by step from the same states."""

from __future__ import annotations

import copy
import math
import pickle
from typing import Any

import gymnasium
import pytest
import torch
from tensordict import TensorDict, TensorDictBase

from tdx import (
    ArgumentError,
    CartPoleEnv,
    EnvError,
    GymEnv,
    PendulumEnv,
    check_env_specs,
)
from tdx.envs.native import NativeEnv

BATCHES = [(), (4,), (2, 3)]
KINDS: list[tuple[type[NativeEnv], str]] = [
    (PendulumEnv, "Pendulum-v1"),
    (CartPoleEnv, "CartPole-v1"),
]
both = pytest.mark.parametrize(("kind", "name"), KINDS)
every_batch = pytest.mark.parametrize("batch", BATCHES, ids=str)


def make(kind: type[NativeEnv], **kwargs: Any) -> NativeEnv:
    return kind(**kwargs)


def random_states(kind: type[NativeEnv], batch: tuple[int, ...]) -> torch.Tensor:
    """Return states over the whole range, including falls and maximum speeds."""
    widest = torch.tensor([4 * math.pi, 8.0] if kind is PendulumEnv else [2.5, 3.0, 0.3, 3.0])
    return (torch.rand(*batch, kind.state_size, dtype=torch.float64) * 2 - 1) * widest


def gymnasium_action(kind: type[NativeEnv], action: torch.Tensor) -> Any:
    return action.numpy() if kind is PendulumEnv else int(action.argmax())


class Reference:
    """Step a Gymnasium env from a state; return its results as tensors."""

    def __init__(self, name: str, state: torch.Tensor, **kwargs: Any) -> None:
        self.env: Any = gymnasium.make(name, **kwargs)
        self.env.reset(seed=0)
        inner: Any = self.env.unwrapped
        inner.state = state.double().numpy().copy()

    def step(self, action: Any) -> dict[str, torch.Tensor]:
        observation, reward, terminated, truncated, _ = self.env.step(action)
        return {
            "observation": torch.from_numpy(observation),
            "reward": torch.tensor([reward], dtype=torch.float32),
            "terminated": torch.tensor([bool(terminated)]),
            "truncated": torch.tensor([bool(truncated)]),
            "done": torch.tensor([bool(terminated or truncated)]),
        }


def assert_equal_rows(following: TensorDictBase, expected: list[dict[str, torch.Tensor]]) -> None:
    rows = following.reshape(-1)
    for index, row in enumerate(expected):
        for key, value in row.items():
            torch.testing.assert_close(rows[index][key], value, rtol=1e-6, atol=1e-6, msg=key)


@both
@every_batch
@pytest.mark.filterwarnings("ignore:.*You are calling 'step")
def test_steps_equal_gymnasiums(kind: type[NativeEnv], name: str, batch: tuple[int, ...]) -> None:
    env = make(kind, batch_size=batch)
    states = random_states(kind, batch)
    env.set_state(states)
    references = [Reference(name, state) for state in states.reshape(-1, kind.state_size)]
    for _ in range(30):
        tensordict = env.rand_step()
        rows = tensordict["action"].reshape(len(references), -1)
        expected = [
            reference.step(gymnasium_action(kind, action))
            for reference, action in zip(references, rows, strict=True)
        ]
        assert_equal_rows(tensordict["next"], expected)


@pytest.mark.parametrize("kind", [PendulumEnv, CartPoleEnv])
def test_dynamics_in_single_precision_are_close(kind: type[NativeEnv]) -> None:
    double, single = make(kind), make(kind, state_dtype=torch.float32)
    state = random_states(kind, ()) / 2
    double.set_state(state)
    single.set_state(state)
    for _ in range(20):
        tensordict = double.rand_step()
        other = single.step(TensorDict(action=tensordict["action"]))
        torch.testing.assert_close(
            other["next", "observation"], tensordict["next", "observation"], rtol=1e-3, atol=1e-3
        )
    assert single.state.dtype is torch.float32


def test_pendulum_actions_beyond_the_limit_are_clamped() -> None:
    env = PendulumEnv(batch_size=[2])
    env.set_state(torch.zeros(2))
    following = env.step(TensorDict(action=torch.tensor([[2.0], [50.0]]), batch_size=[2]))["next"]
    torch.testing.assert_close(following["observation"][0], following["observation"][1])


def test_pendulum_takes_another_gravity() -> None:
    env = PendulumEnv(g=1.0)
    reference = Reference("Pendulum-v1", torch.tensor([1.0, 0.5]), g=1.0)
    env.set_state(torch.tensor([1.0, 0.5], dtype=torch.float64))
    following = env.rand_step()
    expected = reference.step(following["action"].numpy())
    assert_equal_rows(following["next"].unsqueeze(0), [expected])


@pytest.mark.filterwarnings("ignore:.*You are calling 'step")
def test_cart_pole_sutton_barto_reward_equals_gymnasiums() -> None:
    env = CartPoleEnv(sutton_barto_reward=True)
    reference = Reference("CartPole-v1", torch.zeros(4), sutton_barto_reward=True)
    env.set_state(torch.zeros(4))
    rewards = []
    for _ in range(15):
        action = TensorDict(action=torch.tensor([0, 1]))
        following = env.step(action)["next"]
        assert_equal_rows(following.unsqueeze(0), [reference.step(1)])
        rewards.append(following["reward"].item())
    assert set(rewards) == {0.0, -1.0}


def test_cart_pole_takes_indices_as_actions() -> None:
    one_hot, index = CartPoleEnv(), CartPoleEnv(categorical_action_encoding=True)
    for env in (one_hot, index):
        env.set_state(torch.zeros(4))
    right = one_hot.step(TensorDict(action=torch.tensor([0, 1])))["next", "observation"]
    also_right = index.step(TensorDict(action=torch.tensor(1)))["next", "observation"]
    assert torch.equal(right, also_right)
    assert index.action_spec.shape == torch.Size([])


@both
def test_specs_are_those_of_the_gym_env(kind: type[NativeEnv], name: str) -> None:
    gym = GymEnv(name)
    env = make(kind)
    assert env.observation_spec == gym.observation_spec
    assert env.action_spec == gym.action_spec
    assert env.full_reward_spec == gym.full_reward_spec
    assert env.full_done_spec == gym.full_done_spec
    gym.close()


@both
def test_specs_are_those_of_the_batched_gym_env(kind: type[NativeEnv], name: str) -> None:
    gym = GymEnv(name, num_envs=3)
    env = make(kind, batch_size=[3])
    assert env.output_spec == gym.output_spec
    assert env.input_spec == gym.input_spec
    gym.close()


@both
@every_batch
def test_specs_are_kept(kind: type[NativeEnv], name: str, batch: tuple[int, ...]) -> None:
    check_env_specs(make(kind, batch_size=batch), break_when_any_done="both")


@both
def test_the_time_limit_is_the_registered_one(kind: type[NativeEnv], name: str) -> None:
    limit = gymnasium.spec(name).max_episode_steps
    assert limit is not None
    env = make(kind, batch_size=[2])
    env.reset()
    env.set_state(torch.zeros(kind.state_size), elapsed_steps=limit - 2)
    env.step(env.rand_action())
    assert env.elapsed_steps.flatten().tolist() == [limit - 1, limit - 1]
    following = env.rand_step()["next"]
    assert following["truncated"].all()
    assert following["done"].all()
    assert not following["terminated"].any()


def test_without_a_limit_nothing_is_truncated() -> None:
    env = PendulumEnv(max_episode_steps=None)
    assert env.rollout(210)["next", "done"].sum() == 0


def test_truncated_and_terminated_may_both_be_true() -> None:
    env = CartPoleEnv(max_episode_steps=1)
    env.set_state(torch.tensor([2.4, 10.0, 0.0, 0.0]))
    following = env.rand_step()["next"]
    assert following["terminated"]
    assert following["truncated"]


@both
def test_a_partial_reset_is_of_its_rows_only(kind: type[NativeEnv], name: str) -> None:
    env = make(kind, batch_size=[2, 3])
    started = env.rollout(4)[..., -1]
    tensordict = env.step_mdp(started)
    mask = torch.tensor([[True, False, False], [False, True, False]]).unsqueeze(-1)
    state, kept_mask = env.state, mask.clone()
    result = env.reset(tensordict.clone().set("_reset", mask))
    rows = mask.squeeze(-1)
    assert torch.equal(env.state[~rows], state[~rows])
    assert not torch.isclose(env.state[rows], state[rows]).any()
    assert torch.equal(result["observation"][~rows], tensordict["observation"][~rows])
    assert torch.equal(env.elapsed_steps.squeeze(-1), torch.where(rows, 0, 4))
    assert torch.equal(mask, kept_mask)


def test_reset_cart_receives_rewards() -> None:
    env = CartPoleEnv(batch_size=[2])
    fallen = torch.tensor([3.0, 0.0, 0.0, 0.0])
    env.set_state(fallen)
    assert env.rand_step()["next", "reward"].flatten().tolist() == [1.0, 1.0]
    started = env.rand_step()
    assert started["next", "reward"].flatten().tolist() == [0.0, 0.0]
    mask = torch.tensor([[True], [False]])
    env.reset(env.step_mdp(started).set("_reset", mask))
    assert env.rand_step()["next", "reward"].flatten().tolist() == [1.0, 0.0]


@both
def test_initial_states_have_the_distribution_of_gymnasium(
    kind: type[NativeEnv], name: str
) -> None:
    env = make(kind, batch_size=[2000])
    env.set_seed(0)
    env.reset()
    high = torch.tensor([math.pi, 1.0] if kind is PendulumEnv else [0.05] * 4)
    states = env.state / high
    assert (states.abs() <= 1).all()
    assert (states.amax(0) > 0.99).all()
    assert (states.amin(0) < -0.99).all()
    assert (states.mean(0).abs() < 0.05).all()


@both
@every_batch
def test_the_same_seed_gives_the_same_episode(
    kind: type[NativeEnv], name: str, batch: tuple[int, ...]
) -> None:
    env, other = make(kind, batch_size=batch), make(kind, batch_size=batch)
    assert env.set_seed(7) == 7 + math.prod(batch)
    other.set_seed(7)
    torch.manual_seed(0)
    rollout = env.rollout(20, break_when_any_done=False)
    torch.manual_seed(0)
    assert (rollout == other.rollout(20, break_when_any_done=False)).all()
    other.set_seed(8)
    assert not torch.equal(other.reset()["observation"], rollout[..., 0]["observation"])


@both
def test_a_row_has_the_episodes_of_a_single_env_with_its_seed(
    kind: type[NativeEnv], name: str
) -> None:
    """Whatever the other rows do, and also beyond the episodes that are drawn at once."""
    env = make(kind, batch_size=[2, 2])
    env.set_seed(5)
    rows = [make(kind) for _ in range(4)]
    for index, row in enumerate(rows):
        row.set_seed(5 + index)
    tensordict = env.reset()
    expected = [row.reset() for row in rows]
    for number in range(40):
        mask = torch.tensor([True, number % 2 == 0, number > 35, False]).reshape(2, 2, 1)
        tensordict = env.reset(tensordict.set("_reset", mask))
        for index, ended in enumerate(mask.flatten().tolist()):
            if ended:
                expected[index] = rows[index].reset()
        seen = torch.stack([row["observation"] for row in expected])
        assert torch.equal(tensordict["observation"].flatten(0, 1), seen)


@both
def test_seeds_of_any_size(kind: type[NativeEnv], name: str) -> None:
    env = make(kind)
    starts = []
    for seed in (0, 1, 2**32, -1, 2**63 - 1, 2**64 - 2):
        env.set_seed(seed)
        starts.append(env.reset()["observation"])
    assert len(torch.stack(starts).unique(dim=0)) == len(starts)


@both
def test_without_a_seed_two_envs_differ(kind: type[NativeEnv], name: str) -> None:
    torch.manual_seed(0)
    first = make(kind).reset()["observation"]
    torch.manual_seed(0)
    assert not torch.equal(first, make(kind).reset()["observation"])


@both
def test_stored_steps_do_not_change(kind: type[NativeEnv], name: str) -> None:
    env = make(kind, batch_size=[2])
    tensordict = env.rand_step(env.reset())
    state, stored = env.state, tensordict.clone()
    kept = state.clone()
    env.rollout(5, auto_reset=False, tensordict=env.step_mdp(tensordict))
    assert (tensordict == stored).all()
    assert torch.equal(state, kept)


@both
def test_writing_into_an_observation_does_not_move_the_env(
    kind: type[NativeEnv], name: str
) -> None:
    env = make(kind, state_dtype=torch.float32)
    tensordict = env.reset()
    state = env.state.clone()
    tensordict["observation"].zero_()
    assert torch.equal(env.state, state)


@both
def test_steps_from_a_stored_state(kind: type[NativeEnv], name: str) -> None:
    env = make(kind, batch_size=[3])
    env.reset()
    state, elapsed = env.state, env.elapsed_steps
    action = env.rand_action()
    first = env.step(action.clone())["next"]
    env.set_state(state, elapsed)
    assert (env.step(action.clone())["next"] == first).all()


@both
def test_copies_continue_identically(kind: type[NativeEnv], name: str) -> None:
    env = make(kind, batch_size=[2])
    env.reset()
    copied, pickled = copy.deepcopy(env), pickle.loads(pickle.dumps(env))
    action = env.rand_action()
    following = env.step(action.clone())["next"]
    for other in (copied, pickled):
        assert (other.step(action.clone())["next"] == following).all()
    assert torch.equal(env.reset()["observation"], copied.reset()["observation"])


def test_copies_have_no_autograd_graph() -> None:
    env = PendulumEnv()
    tensordict = env.reset().set("action", torch.ones(1, requires_grad=True))
    env.step(tensordict)
    assert env.state.requires_grad
    assert torch.equal(copy.deepcopy(env).state, env.state)


@both
def test_on_the_meta_device(kind: type[NativeEnv], name: str) -> None:
    env = make(kind, batch_size=[4], device="meta")
    tensordict = env.reset()
    tensordict["action"] = torch.empty(env.action_spec.shape, device="meta")
    following = env.step(tensordict)["next"]
    assert following["observation"].device.type == "meta"
    assert following["observation"].shape == (4, *env.observation_spec["observation"].shape[1:])
    mask = torch.zeros(4, 1, dtype=torch.bool, device="meta")
    assert env._reset(TensorDict(_reset=mask, batch_size=[4]))["done"].shape == (4, 1)


@both
def test_moving_includes_state_seed_and_specs(kind: type[NativeEnv], name: str) -> None:
    env = make(kind, batch_size=[4])
    env.reset()
    assert env.to("meta") is env
    assert env.state.device == env.device == torch.device("meta")
    assert env.observation_spec["observation"].device.type == "meta"
    action = torch.empty(env.action_spec.shape, device="meta")
    assert env._step(TensorDict(action=action))["done"].is_meta
    assert env.reset()["observation"].is_meta


@pytest.mark.gpu
@both
def test_on_an_accelerator(kind: type[NativeEnv], name: str) -> None:
    cpu = make(kind, batch_size=[4])
    env = make(kind, batch_size=[4], device="cuda")
    check_env_specs(env, break_when_any_done="both")
    state = random_states(kind, (4,))
    cpu.set_state(state)
    env.set_state(state)
    for _ in range(10):
        tensordict = cpu.rand_step()
        moved = env.step(TensorDict(action=tensordict["action"].cuda(), batch_size=[4]))
        for key in ("observation", "reward", "done"):
            torch.testing.assert_close(moved["next", key].cpu(), tensordict["next", key])


@pytest.mark.gpu
@both
def test_episodes_on_an_accelerator_start_in_the_states_of_the_host(
    kind: type[NativeEnv], name: str
) -> None:
    envs = make(kind, batch_size=[4]), make(kind, batch_size=[4], device="cuda")
    for env in envs:
        env.set_seed(0)
    for _ in range(20):
        for env in envs:
            env.reset()
        assert torch.equal(envs[0].state, envs[1].state.cpu())


@both
def test_step_before_reset_has_a_hint(kind: type[NativeEnv], name: str) -> None:
    with pytest.raises(EnvError, match=r"no state yet \(call env.reset"):
        make(kind).rand_step()


@both
def test_wrong_arguments_are_named(kind: type[NativeEnv], name: str) -> None:
    with pytest.raises(ArgumentError, match="max_episode_steps must be at least 1, got 0"):
        make(kind, max_episode_steps=0)
    with pytest.raises(ArgumentError, match="state_dtype must be a floating type"):
        make(kind, state_dtype=torch.int64)
    env = make(kind, batch_size=[2])
    with pytest.raises(ArgumentError, match=r"state of shape \(3,\) does not broadcast"):
        env.set_state(torch.zeros(3))
    with pytest.raises(ArgumentError, match=r"elapsed_steps of shape \(5,\)"):
        env.set_state(torch.zeros(kind.state_size), torch.zeros(5))


def test_a_step_without_an_action_is_an_error() -> None:
    env = PendulumEnv()
    with pytest.raises(EnvError, match="no 'action'"):
        env.step(env.reset())

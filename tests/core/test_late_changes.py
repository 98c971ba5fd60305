"""Chains and envs that are changed after the first step: specs, keys and steps follow."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium
import pytest
import torch
from tensordict import TensorDictBase

from tdx import (
    ActionScaling,
    ArgumentError,
    Bounded,
    Categorical,
    CatFrames,
    ChainError,
    Compose,
    Composite,
    DoubleToFloat,
    GymEnv,
    GymWrapper,
    InitTracker,
    ObservationNorm,
    RenameTransform,
    RewardClipping,
    RewardScaling,
    RewardSum,
    StepCounter,
    TensorDictPrimer,
    ToTensorImage,
    Transform,
    TransformedEnv,
    Unbounded,
)
from tdx.envs.gym import default_info_dict_reader
from tests.envs.mocks import CountingEnv


def used(*stages: Transform) -> TransformedEnv:
    """Return a chain around a Pendulum after its specs were read and a rollout was made."""
    env = TransformedEnv(GymEnv("Pendulum-v1"), Compose(*stages))
    env.rollout(3)
    assert env.specs is not None
    return env


def still(tensordict: TensorDictBase) -> TensorDictBase:
    return tensordict.set("action", torch.zeros(1))


def assert_kept(env: TransformedEnv) -> None:
    """Check that a rollout matches the specs."""
    rollout = env.rollout(4, break_when_any_done=False)
    for key, spec in env.full_observation_spec.items(True, True):
        assert spec.is_in(rollout[key][0]), key
        assert spec.is_in(rollout["next"][key][-1]), key
    for key, spec in env.full_reward_spec.items(True, True):
        assert spec.is_in(rollout["next"][key][-1]), key


# Stages


def test_out_keys() -> None:
    norm = ObservationNorm(0.0, 1.0)
    env = used(norm)
    norm.out_keys = ["normal"]
    assert set(env.observation_keys) == {"observation", "normal"}
    assert_kept(env)


def test_in_keys() -> None:
    norm = ObservationNorm(0.0, 2.0, in_keys=["observation"])
    env = used(norm, RenameTransform(["observation"], ["seen"], create_copy=True))
    assert env.observation_spec["observation"].high[2] == 16
    env.transform.insert(0, RenameTransform(["observation"], ["raw"], create_copy=True))
    norm.in_keys = ["raw"]
    assert env.observation_spec["observation"].high[2] == 8
    assert env.observation_spec["raw"].high[2] == 16
    assert_kept(env)


def test_assigned_keys_replace_inferred_ones() -> None:
    total = RewardSum()
    env = used(total)
    total.out_keys = ["total"]
    rollout = env.rollout(3)["next"]
    torch.testing.assert_close(rollout["total"], rollout["reward"].cumsum(0))
    assert "episode_reward" not in rollout.keys()
    pytest.importorskip("mujoco")
    cast = DoubleToFloat()
    env = TransformedEnv(GymEnv("HalfCheetah-v5"), cast)
    assert env.rollout(2)["observation"].dtype is torch.float32
    cast.out_keys = ["single"]
    rollout = env.rollout(2)
    assert rollout["single"].dtype is torch.float32
    assert rollout["observation"].dtype is torch.float64


def test_inverse_keys() -> None:
    rename = RenameTransform([], [], ["action"], ["push"])
    env = used(rename)
    rename.out_keys_inv = ["torque"]
    assert env.action_key == "torque"
    assert "torque" in env.rollout(2).keys()


@pytest.mark.parametrize(
    ("stage", "changes", "shape", "high"),
    [
        (lambda: ObservationNorm(0.0, 1.0), {"scale": torch.tensor(5.0)}, (3,), 40.0),
        (lambda: CatFrames(2, -1, ["observation"]), {"N": 3}, (9,), 8.0),
        (lambda: CatFrames(2, -1, ["observation"], padding="constant"),
         {"padding_value": 50.0}, (6,), 50.0),
    ],
)  # fmt: skip
def test_argument_assigned_later(
    stage: Callable[[], Transform], changes: dict[str, Any], shape: tuple[int, ...], high: float
) -> None:
    made = stage()
    env = used(made)
    for name, value in changes.items():
        setattr(made, name, value)
    spec = env.observation_spec["observation"]
    assert isinstance(spec, Bounded)
    assert spec.shape == shape
    assert spec.high.max() == high
    assert_kept(env)


def test_bounds_of_the_reward() -> None:
    clip = RewardClipping(-1.0, 1.0)
    env = used(clip)
    clip.clamp_max = torch.tensor(-0.5)
    assert isinstance(env.reward_spec, Bounded)
    assert env.reward_spec.high == -0.5
    assert_kept(env)


def test_max_steps() -> None:
    counter = StepCounter()
    env = used(RewardScaling(0.0, 1.0), counter)
    counter.max_steps = 3
    assert env.rollout(10).shape == (3,)


def test_the_primers() -> None:
    primer = TensorDictPrimer(hidden=Unbounded((2,)))
    env = used(primer)
    primer.primers = {"state": Unbounded((5,))}
    assert "hidden" not in env.observation_spec.keys()
    assert env.rollout(2)["next", "state"].shape == (2, 5)


def test_missing_keys_tolerated_later() -> None:
    norm = ObservationNorm(0.0, 1.0)
    env = used(norm)
    norm.in_keys = ["nowhere"]
    norm.set_missing_tolerance(True)
    assert "nowhere" not in env.rollout(2).keys()


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("before", [ObservationNorm, lambda: ObservationNorm(0.0, 1.0)])
def test_a_state_dict(before: Callable[[], ObservationNorm], whole: bool) -> None:
    env = TransformedEnv(GymEnv("Pendulum-v1"), Compose(before()))
    assert env.observation_spec["observation"].shape == (3,)
    other = TransformedEnv(GymEnv("Pendulum-v1"), Compose(ObservationNorm(torch.ones(3), 5.0)))
    if whole:
        env.load_state_dict(other.state_dict())
    else:
        env.stages[0].load_state_dict(other.stages[0].state_dict())
    assert env.observation_spec["observation"] == other.observation_spec["observation"]
    assert_kept(env)


def test_a_cast() -> None:
    env = used(ObservationNorm(torch.zeros(3), torch.ones(3)))
    assert env.observation_spec["observation"].dtype is torch.float32
    env.transform.double()
    assert env.observation_spec["observation"].dtype is torch.float64
    assert_kept(env)


def test_a_custom_stage() -> None:
    class Repeats(Transform):
        def __init__(self, times: int) -> None:
            super().__init__(in_keys=["observation"])
            self.times = times
            self.calls = 0

        def _apply_transform(self, tensor: torch.Tensor) -> torch.Tensor:
            self.calls += 1
            return tensor.repeat(self.times)

        def _transform_spec(self, spec: Any) -> Any:
            return Unbounded((3 * self.times,))

    stage = Repeats(2)
    env = used(stage)
    specs = env.output_spec
    env.rollout(2)
    assert env.output_spec is specs, "the state of a stage does not change its specs"
    stage.times = 4
    assert env.observation_spec["observation"].shape == (12,)
    assert_kept(env)


@pytest.mark.parametrize("nested", [False, True])
def test_added_and_removed_stages(nested: bool) -> None:
    inner = Compose(RewardSum())
    env = used(inner, InitTracker()) if nested else used(RewardSum(), InitTracker())
    chain = inner if nested else env.transform
    assert isinstance(chain, Compose)
    chain.insert(0, RewardClipping(0.0, 0.0))
    assert (env.rollout(3)["next", "episode_reward"] == 0).all()
    chain.append(ActionScaling())
    assert isinstance(env.action_spec, Bounded)
    assert env.action_spec.high == 1
    chain.pop()
    assert env.action_spec.high == 2
    chain.append(StepCounter(2))
    assert env.rollout(9).shape == (2,)


# The env inside


class WithInfo(gymnasium.Wrapper[Any, Any, Any, Any]):
    def reset(self, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        return self.env.reset(**kwargs)[0], {"speed": 2.0}

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        return (*self.env.step(action)[:4], {"speed": 3.0})


@pytest.mark.parametrize("declared", [True, False])
def test_an_info_reader(declared: bool) -> None:
    base = GymWrapper(WithInfo(gymnasium.make("Pendulum-v1")))
    env = TransformedEnv(base, RewardSum())
    env.rollout(3, still)
    if declared:
        base.set_info_dict_reader(default_info_dict_reader(["speed"]))
    else:
        base.set_info_dict_reader(
            lambda info, tensordict: tensordict.set("speed", torch.tensor([info["speed"]]))
        )
    rollout = env.rollout(3, still)
    assert rollout["speed"].flatten().tolist() == [2.0, 3.0, 3.0]
    assert ("speed" in env.observation_keys) == declared


@pytest.mark.parametrize("nested", [False, True])
def test_specs_of_the_env_inside(nested: bool) -> None:
    base = CountingEnv()
    env = TransformedEnv(base, RewardSum())
    if nested:
        env = TransformedEnv(env, StepCounter())
    env.rollout(2)
    flags = {"done", "terminated", "truncated"}
    assert set(env.done_keys) == flags
    base.full_done_spec = Composite(done=Categorical(2, (1,), dtype=torch.bool))
    assert env.done_keys == ["done"]
    assert flags - set(env.rollout(2)["next"].keys()) == {"terminated", "truncated"}
    base.action_spec = Composite(pushes=Composite(action=Unbounded(2)))
    assert env.action_key == ("pushes", "action")


def test_another_env_inside() -> None:
    env = used(RewardSum())
    env.base_env = GymEnv("CartPole-v1")
    assert env.observation_spec["observation"].shape == (4,)
    assert env.rollout(3)["observation"].shape == (3, 4)


def test_the_batch_size_follows_the_env_inside() -> None:
    base = CountingEnv()
    env = TransformedEnv(TransformedEnv(base, RewardSum()), StepCounter())
    assert env.batch_size == torch.Size([])
    base.batch_size = (3,)
    assert env.batch_size == torch.Size([3])
    with pytest.raises(ChainError, match="follows from the chain") as caught:
        env.batch_size = (4,)
    assert caught.value.hint == "set it on the env inside: env.base_env.batch_size = ..."


def test_the_device_follows_the_env_inside() -> None:
    base = CountingEnv()
    env = TransformedEnv(TransformedEnv(base, RewardSum()), StepCounter())
    assert env.device == torch.device("cpu")
    base.to("meta")
    assert env.device == torch.device("meta")
    assert env.output_spec.device == torch.device("meta")


# What the specs show before a step


@pytest.mark.parametrize(
    ("stage", "message"),
    [
        (lambda: CatFrames(2, -1), "has no key 'pixels'"),
        (lambda: CatFrames(2, -1, in_keys=["reward"]), "a reset of the env.* no key 'reward'"),
        (lambda: ToTensorImage(), "has no key 'pixels'"),
        (lambda: DoubleToFloat(in_keys_inv=["state"]), "the env's input.* no key 'state'"),
    ],
)
def test_a_missing_in_key(stage: Callable[[], Transform], message: str) -> None:
    env = TransformedEnv(GymEnv("Pendulum-v1"), Compose(InitTracker(), stage()))
    with pytest.raises(KeyError, match=f"stage 1.*{message}"):
        _ = env.output_spec


@pytest.mark.parametrize("batch", [(), (2,), (2, 3)])
def test_a_dim_beyond_the_frame(batch: tuple[int, ...]) -> None:
    env = TransformedEnv(CountingEnv(batch_size=batch), CatFrames(2, -2, in_keys=["observation"]))
    with pytest.raises(
        ArgumentError, match=r"'observation': dim=-2 is out of range for a frame with 1 dims"
    ):
        _ = env.output_spec


@pytest.mark.parametrize(
    "stage",
    [
        lambda: ObservationNorm(0.0, 1.0),
        lambda: CatFrames(2, -1, ["observation"]),
        lambda: RewardScaling(0.0, 1.0, in_keys=["observation"]),
    ],
)
def test_a_group_where_a_tensor_is_needed(stage: Callable[[], Transform]) -> None:
    env = TransformedEnv(GymEnv("Blackjack-v1"), stage())
    with pytest.raises(ChainError, match="'observation' is a group of entries") as caught:
        _ = env.output_spec
    assert caught.value.hint == "name its entries, such as ('observation', '0')"


@pytest.mark.parametrize(
    "stage",
    [
        lambda: ActionScaling(loc=1.0, scale=2.0),
        lambda: ObservationNorm(0.0, 1.0, in_keys=[], in_keys_inv=["action"]),
    ],
)
def test_fractional_actions_of_an_integer_env(stage: Callable[[], Transform]) -> None:
    env = TransformedEnv(GymEnv("CartPole-v1"), stage())
    with pytest.raises(ChainError, match=r"returns floats, but the env takes OneHot of torch"):
        _ = env.input_spec

"""``to_torchrl``: an env of tdx in TorchRL's rollouts, batches, collectors and losses."""

from __future__ import annotations

import copy
import pickle
import warnings
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
import torchrl.envs as rl_envs
from tensordict import TensorDict
from tensordict.nn import NormalParamExtractor, TensorDictModule
from torch import nn

import tdx
from tdx import (
    ActionDiscretizer,
    ActionMask,
    CatFrames,
    Compose,
    EnvBase,
    GymEnv,
    InitTracker,
    NoopResetEnv,
    ObservationNorm,
    PendulumEnv,
    RewardSum,
    SerialEnv,
    StepCounter,
    TensorDictPrimer,
    TransformedEnv,
    Unbounded,
    VecNorm,
    to_torchrl,
)
from tests.programs import exhaustive
from tests.stacks.torchrl.chains import differences, rollout

with warnings.catch_warnings():
    # Importing them warns of deprecated classes of their own.
    warnings.simplefilter("ignore")
    import torchrl.collectors as collectors
    import torchrl.modules as modules
    import torchrl.objectives as objectives


def pendulum() -> EnvBase:
    frames = CatFrames(N=3, dim=-1, in_keys=["observation"])
    return TransformedEnv(
        GymEnv("Pendulum-v1"), Compose(StepCounter(max_steps=7), RewardSum(), frames)
    )


def cart_pole() -> EnvBase:
    return TransformedEnv(GymEnv("CartPole-v1"), Compose(StepCounter(max_steps=20), InitTracker()))


def rl_pendulum() -> Any:
    return to_torchrl(pendulum())


def rl_cart_pole() -> Any:
    return to_torchrl(cart_pole())


class Masked(EnvBase):
    """Three arms, of which a mask allows some."""

    def __init__(self) -> None:
        super().__init__()
        self.observation_spec = tdx.Composite(
            {"action_mask": tdx.Binary(3, dtype=torch.bool), ("deep", "count"): Unbounded((1,))}
        )
        self.action_spec = tdx.Categorical(3)

    def _observe(self, count: torch.Tensor) -> TensorDict:
        allowed = torch.tensor([True, bool(count % 2), False])
        return TensorDict({"action_mask": allowed, ("deep", "count"): count})

    def _reset(self, tensordict: Any = None, **kwargs: Any) -> Any:
        return self._observe(torch.zeros(1))

    def _step(self, tensordict: Any) -> Any:
        observed = self._observe(tensordict["deep", "count"] + 1)
        return observed.update({"reward": tensordict["action"].float().reshape(1), "done": False})

    def _set_seed(self, seed: int | None) -> None: ...


class Dictionary(gymnasium.Env[Any, Any]):
    """Nested observations, text and several discrete actions."""

    observation_space = gymnasium.spaces.Dict(
        {
            "image": gymnasium.spaces.Box(0, 255, (4, 4, 3), np.uint8),
            "deep": gymnasium.spaces.Dict({"kind": gymnasium.spaces.Discrete(4)}),
        }
    )
    action_space = gymnasium.spaces.MultiDiscrete([2, 3])

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.observation_space.seed(int(self.np_random.integers(1000)))
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> Any:
        return self.observation_space.sample(), 1.0, bool(self.np_random.random() < 0.2), False, {}


ENVS: dict[str, Callable[[], EnvBase]] = {
    "gym": lambda: GymEnv("CartPole-v1"),
    "vector": lambda: GymEnv("CartPole-v1", num_envs=3),
    "native": PendulumEnv,
    "native batch": lambda: TransformedEnv(PendulumEnv(batch_size=[4]), StepCounter(9)),
    "chain": pendulum,
    "serial": lambda: SerialEnv(3, pendulum),
    "chain around serial": lambda: TransformedEnv(
        SerialEnv(2, cart_pole), Compose(RewardSum(), VecNorm(in_keys=["observation"]))
    ),
    "discrete action": lambda: TransformedEnv(GymEnv("Pendulum-v1"), ActionDiscretizer(5)),
    "nested": lambda: tdx.GymWrapper(Dictionary()),
    "mask": lambda: TransformedEnv(Masked(), ActionMask()),
    "noops": lambda: TransformedEnv(GymEnv("CartPole-v1"), NoopResetEnv(noops=4)),
    "primer": lambda: TransformedEnv(
        GymEnv("CartPole-v1"), TensorDictPrimer({"hidden": Unbounded((2,))}, default_value=1.0)
    ),
}
envs = pytest.mark.parametrize("make", ENVS.values(), ids=ENVS)


@envs
@pytest.mark.parametrize("stop", [True, False], ids=["one episode", "partial resets"])
def test_rollouts_are_equal(make: Callable[[], EnvBase], stop: bool) -> None:
    ours = rollout(make(), 40, break_when_any_done=stop)
    theirs = rollout(to_torchrl(make()), 40, break_when_any_done=stop)
    assert ours.batch_size == theirs.batch_size
    assert differences(ours, theirs) == []


@envs
def test_torchrl_accepts_the_specs(make: Callable[[], EnvBase]) -> None:
    rl_envs.check_env_specs(to_torchrl(make()))


@exhaustive
def test_torchrl_batches_are_equal_to_batches_of_tdx() -> None:
    ours = rollout(SerialEnv(2, pendulum), 20, break_when_any_done=False)
    serial = rl_envs.SerialEnv(2, rl_pendulum)
    parallel = rl_envs.ParallelEnv(2, rl_pendulum, mp_start_method="fork")
    try:
        assert differences(ours, rollout(serial, 20, break_when_any_done=False)) == []
        assert differences(ours, rollout(parallel, 20, break_when_any_done=False)) == []
    finally:
        parallel.close()


def test_transforms_of_torchrl_around_transforms_of_tdx() -> None:
    env = rl_envs.TransformedEnv(rl_pendulum(), rl_envs.RewardScaling(0.0, 2.0))
    rl_envs.check_env_specs(env)
    ours = rollout(pendulum(), 20, break_when_any_done=False)
    theirs = rollout(env, 20, break_when_any_done=False)
    assert torch.equal(ours["next", "reward"] * 2, theirs["next", "reward"])


def test_dqn_with_a_collector() -> None:
    spec = rl_cart_pole().action_spec
    q_net = modules.QValueActor(nn.Linear(4, 2), in_keys=["observation"], spec=spec)
    chosen = modules.QValueModule(spec=spec)(TensorDict(action_value=torch.tensor([0.0, 1.0])))
    assert spec.is_in(chosen["action"])
    assert chosen["chosen_action_value"].item() == 1.0
    loss = objectives.DQNLoss(q_net, action_space=spec, delay_value=True)
    objectives.SoftUpdate(loss, eps=0.9)
    collector = collectors.Collector(
        rl_envs.SerialEnv(2, rl_cart_pole), q_net, frames_per_batch=32, total_frames=64
    )
    batches = list(collector)
    collector.shutdown()
    assert [batch.shape for batch in batches] == [(2, 16), (2, 16)]
    value = loss(batches[0])["loss"]
    value.backward()
    assert value.isfinite()


@pytest.mark.parametrize(
    "use",
    [
        lambda: collectors.Collector(cart_pole, frames_per_batch=4),
        lambda: collectors.Collector(cart_pole(), frames_per_batch=4),
        lambda: rl_envs.SerialEnv(2, cart_pole),
        lambda: rl_envs.TransformedEnv(cart_pole(), rl_envs.StepCounter()).rollout(2),
    ],
)
def test_an_error_leads_from_an_env_of_tdx_to_the_conversion(use: Callable[[], Any]) -> None:
    with pytest.raises(tdx.TdxError, match=r"tdx\.to_torchrl\(env\)"):
        use()


def test_ppo() -> None:
    env = to_torchrl(TransformedEnv(GymEnv("Pendulum-v1"), ObservationNorm(0.0, 2.0)))
    net = TensorDictModule(
        nn.Sequential(nn.Linear(3, 2), NormalParamExtractor()),
        in_keys=["observation"],
        out_keys=["loc", "scale"],
    )
    actor = modules.ProbabilisticActor(
        net,
        in_keys=["loc", "scale"],
        spec=env.action_spec,
        distribution_class=modules.TanhNormal,
        return_log_prob=True,
    )
    critic = modules.ValueOperator(nn.Linear(3, 1), in_keys=["observation"])
    with torch.no_grad():
        data = env.rollout(30, actor)
    objectives.value.GAE(gamma=0.9, lmbda=0.9, value_network=critic)(data)
    losses = objectives.ClipPPOLoss(actor, critic)(data)
    assert all(losses[key].isfinite() for key in ("loss_objective", "loss_critic"))


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda env: pickle.loads(pickle.dumps(env))])
def test_copies_continue_on_their_own(duplicate: Callable[[Any], Any]) -> None:
    env = rl_pendulum()
    copied = duplicate(env)
    assert differences(rollout(env, 20), rollout(copied, 20)) == []
    assert copied.env is not env.env


def test_state() -> None:
    def make() -> Any:
        return to_torchrl(TransformedEnv(PendulumEnv(), VecNorm(in_keys=["observation"])))

    env, other = make(), make()
    rollout(env, 10)
    other.load_state_dict(env.state_dict())
    assert differences(rollout(env, 5), rollout(other, 5)) == []


def test_seeds_count_up_as_in_tdx() -> None:
    assert rl_pendulum().set_seed(4) == 5
    assert to_torchrl(SerialEnv(3, pendulum)).set_seed(4) == 7


def test_device() -> None:
    env = to_torchrl(PendulumEnv())
    assert env.to("cpu") is env
    moved = env.to("meta")
    assert moved.device == moved.env.device == moved.action_spec.device == torch.device("meta")
    assert moved.is_spec_locked


def test_close() -> None:
    env = pendulum()
    converted = to_torchrl(env)
    assert not converted.is_closed
    del converted
    assert not env.is_closed
    converted = to_torchrl(env)
    converted.close()
    assert env.is_closed
    assert converted.is_closed


def test_other_objects_are_refused() -> None:
    with pytest.raises(tdx.ArgumentError, match="takes an env of tdx, got "):
        to_torchrl(gymnasium.make("CartPole-v1"))  # type: ignore[arg-type]

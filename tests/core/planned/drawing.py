"""Envs, stages and policies from which the property tests draw."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from tensordict.nn import TensorDictModule
from torch import Tensor, nn

from tdx import (
    BinarizeReward,
    Bounded,
    CartPoleEnv,
    Categorical,
    Composite,
    EnvBase,
    ExcludeTransform,
    FlattenObservation,
    GymEnv,
    NextObservationDelta,
    PendulumEnv,
    RenameTransform,
    SelectTransform,
    SerialEnv,
    StepCounter,
    Transform,
    TransformedEnv,
    Unbounded,
    UnsqueezeTransform,
    VecNorm,
)
from tdx.foundation.keys import NestedKey
from tests.core.stages import HONEST, STAGES


class Groups(EnvBase):
    """Env with two groups, which have their own rewards and flags and end at different steps."""

    step_reads: tuple[NestedKey, ...] | None = ()

    def __init__(self, batch_size: tuple[int, ...] = ()) -> None:
        super().__init__(batch_size=batch_size)
        flag = Categorical(2, shape=(*batch_size, 1), dtype=torch.bool)
        each = {"observation": Unbounded((*batch_size, 2))}
        self.observation_spec = Composite(
            a=Composite(each, shape=batch_size),
            b=Composite(each, shape=batch_size),
            observation=Unbounded((*batch_size, 3)),
            shape=batch_size,
        )
        self.action_spec = Composite(
            a=Composite(action=Bounded(-1.0, 1.0, (*batch_size, 2)), shape=batch_size),
            shape=batch_size,
        )
        rewards = {"reward": Unbounded((*batch_size, 1))}
        flags = {"done": flag, "terminated": flag.clone(), "truncated": flag.clone()}
        groups = {name: Composite(rewards, shape=batch_size) for name in "ab"}
        self.reward_spec = Composite(groups, shape=batch_size)
        self.done_spec = Composite(
            {name: Composite(flags, shape=batch_size) for name in "ab"}, shape=batch_size
        )
        self.counts = {name: torch.zeros(*batch_size, 1) for name in "ab"}

    def _observed(self) -> TensorDict:
        size = self.batch_size
        seen = {
            name: TensorDict(observation=torch.cat((count, count * 2), -1), batch_size=size)
            for name, count in self.counts.items()
        }
        whole = torch.cat((self.counts["a"], self.counts["b"], self.counts["a"] + 1), -1)
        return TensorDict({**seen, "observation": whole}, batch_size=size)

    def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
        for name, count in self.counts.items():
            mask = None if tensordict is None else tensordict.get((name, "_reset"), None)
            fresh = torch.zeros_like(count)
            self.counts[name] = fresh if mask is None else torch.where(mask, fresh, count)
        return self._observed()

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        action = tensordict["a", "action"]
        result = self._observed_after_step()
        for name, limit in (("a", 3), ("b", 4)):
            ended = self.counts[name] >= limit
            result[name, "reward"] = action.sum(-1, keepdim=True) * limit
            result[name, "terminated"] = ended
            result[name, "truncated"] = torch.zeros_like(ended)
            result[name, "done"] = ended.clone()
        return result

    def _observed_after_step(self) -> TensorDict:
        self.counts = {name: count + 1 for name, count in self.counts.items()}
        return self._observed()

    def _set_seed(self, seed: int | None) -> None:
        return None


ENVS: dict[str, Callable[[], EnvBase]] = {
    "Acrobot": lambda: TransformedEnv(GymEnv("Acrobot-v1"), StepCounter(7)),
    "Blackjack": lambda: GymEnv("Blackjack-v1"),
    "CartPole": lambda: GymEnv("CartPole-v1"),
    "FrozenLake": lambda: GymEnv("FrozenLake-v1", categorical_action_encoding=True),
    "Pendulum": lambda: GymEnv("Pendulum-v1"),
    "chains inside": lambda: SerialEnv(2, _counted_cart_pole),
    "episodes of one step": lambda: PendulumEnv(batch_size=[2], max_episode_steps=1),
    "groups": Groups,
    "groups in a batch": lambda: Groups((2,)),
    "native": lambda: PendulumEnv(batch_size=[2, 3], max_episode_steps=4),
    "native CartPole": lambda: CartPoleEnv(max_episode_steps=3),
    "three CartPoles": lambda: GymEnv("CartPole-v1", num_envs=3),
    "two CartPoles": lambda: SerialEnv(2, lambda: GymEnv("CartPole-v1")),
    "two natives": lambda: SerialEnv(2, lambda: CartPoleEnv(batch_size=[2])),
}


def _counted_cart_pole() -> EnvBase:
    return TransformedEnv(GymEnv("CartPole-v1"), StepCounter(4, step_count_key="inner_count"))


class Noise(Transform):
    """Stage that draws from the global generator in each step and declares no order."""

    def _apply_transform(self, tensor: Tensor) -> Tensor:
        return tensor + torch.rand(())


CHAINS_OF: dict[str, Callable[[], Any]] = {
    **STAGES,
    **HONEST,
    "delta_of_observation": lambda: NextObservationDelta(["observation"]),
    "exclude_flag": lambda: ExcludeTransform("truncated"),
    "flatten": lambda: FlattenObservation(-1, -1),
    "noise": lambda: Noise(["reward"]),
    "rename_group": lambda: RenameTransform([("a", "observation")], ["of_a"]),
    "binarize": lambda: BinarizeReward(),
    "select": lambda: SelectTransform("observation", "episode_reward"),
    "unsqueeze": lambda: UnsqueezeTransform(-1, in_keys=["observation"]),
    "vec_norm": lambda: VecNorm(["observation"]),
    "vec_norm_all": lambda: VecNorm(["observation"], decay=1.0),
    "vec_norm_reward": lambda: VecNorm(["reward"], decay=0.9),
}


class _Acts(nn.Module):
    """Policy that sums its input, with equal results for rows and blocks."""

    def __init__(self, env: EnvBase) -> None:
        super().__init__()
        self._spec = env.full_action_spec[env.action_key]
        self._lead = env.ndim

    def forward(self, seen: Tensor) -> Tensor:
        spec = self._spec
        total = seen.reshape(*seen.shape[: self._lead], -1).float().sum(-1)
        if spec.dtype.is_floating_point:
            inner = torch.zeros(spec.shape)
            wide = total.reshape(*total.shape, *[1] * (len(spec.shape) - total.ndim))
            return (inner + wide.sin()).to(spec.dtype)
        even = (total.abs() * 10).long() % 2
        if spec.shape == total.shape:
            return even.to(spec.dtype)
        chosen = torch.zeros(spec.shape, dtype=spec.dtype)
        return chosen.scatter_(-1, even.unsqueeze(-1), 1)


def policy_reading(env: EnvBase, place: str) -> TensorDictModule | None:
    """Return a policy that reads the first or last observation of the env.

    ``None`` if the env has several actions.
    """
    if len(env.action_keys) != 1:
        return None
    keys = sorted(env.observation_keys, key=str)
    return TensorDictModule(_Acts(env), [keys[0 if place == "first" else -1]], [env.action_key])

"""The same preprocessing in stacks of many libraries, and faults that can be planted in each.

The stages are functions of observations. Each library wraps them in its own way.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from gymnasium import spaces
from gymnasium.vector import SyncVectorEnv, VectorObservationWrapper
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnvWrapper

from tdx import CatFrames, Compose, GymEnv, Transform, TransformedEnv
from tests.programs import require_package

LIMIT = 6
"""Steps of an episode."""


class Function:
    """One stage, a function of an observation ``[..., F]``."""

    def __call__(self, value: Any) -> Any:
        raise NotImplementedError


@dataclass
class Affine(Function):
    """Scale and shift.

    Args:
        scale: Factor.
        shift: Offset.
        order: Order of the first two features.
    """

    scale: float
    shift: float = 0.5
    order: tuple[int, int] = (0, 1)

    def __call__(self, value: Any) -> Any:
        rest = range(2, value.shape[-1])
        return value[..., [*self.order, *rest]] * self.scale + self.shift


@dataclass
class Normalizer(Function):
    """Statistics of a training, which no longer change.

    Args:
        mean: The mean.
        var: The variance.
    """

    mean: float = 0.3
    var: float = 4.0

    def __call__(self, value: Any) -> Any:
        return (value - self.mean) / self.var**0.5


@dataclass
class Clip(Function):
    """Clip both sides.

    Args:
        limit: Largest value.
    """

    limit: float = 0.3

    def __call__(self, value: Any) -> Any:
        return value.clip(-self.limit, self.limit)


@dataclass
class Round(Function):
    """Round as a conversion to half precision and back does."""

    def __call__(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return value.half().to(value.dtype)
        return value.astype(np.float16).astype(value.dtype)


@dataclass(frozen=True)
class Plan:
    """The preprocessing of a stack.

    Args:
        stages: The functions, in the order in which they act.
        leaks: True if the history keeps observations of the previous episode.
    """

    stages: tuple[Function, ...]
    leaks: bool = False


def sound(gain: float) -> Plan:
    """Return the plan without a fault.

    Args:
        gain: A factor after which some values are clipped.
    """
    return Plan((Affine(gain), Normalizer(), Clip()))


def _replaced(index: int, **changes: Any) -> Callable[[Plan], Plan]:
    def plant(plan: Plan) -> Plan:
        stages = list(plan.stages)
        stages[index] = replace(stages[index], **changes)  # type: ignore[type-var]
        return Plan(tuple(stages))

    return plant


def _scaled(plan: Plan) -> Plan:
    (first, *rest) = plan.stages
    assert isinstance(first, Affine)
    return Plan((Affine(first.scale * 1.1), *rest))


FAULTS: dict[str, Callable[[Plan], Plan]] = {
    "scale": _scaled,
    "shift": _replaced(0, shift=0.55),
    "swapped features": _replaced(0, order=(1, 0)),
    "missing stage": lambda plan: Plan((plan.stages[0], plan.stages[2])),
    "applied twice": lambda plan: Plan((plan.stages[0], *plan.stages)),
    "wrong order": lambda plan: Plan((plan.stages[0], *plan.stages[:0:-1])),
    "fresh statistics": _replaced(1, mean=0.0, var=1.0),
    "clip": _replaced(2, limit=0.2),
    "rounding": lambda plan: Plan((*plan.stages, Round())),
    "leak over the episode boundary": lambda plan: replace(plan, leaks=True),
}
"""Kinds of faults, and how they change a plan."""


# ------------------------------------------------------------------------------ Gymnasium


class Stage(gym.ObservationWrapper[Any, Any, Any]):
    """Applies a function; a subclass has its name and its attributes."""

    def __init__(self, env: Any, function: Function) -> None:
        super().__init__(env)
        shape = env.observation_space.shape
        self.observation_space = spaces.Box(-np.inf, np.inf, shape, np.float32)
        self._function = function
        vars(self).update(vars(function))

    def observation(self, observation: Any) -> Any:
        return np.asarray(self._function(observation), np.float32)


class History(gym.ObservationWrapper[Any, Any, Any]):
    """The last two observations, side by side."""

    def __init__(self, env: Any, *, leaks: bool) -> None:
        super().__init__(env)
        size = 2 * env.observation_space.shape[0]
        self.observation_space = spaces.Box(-np.inf, np.inf, (size,), np.float32)
        self.frames: deque[Any] = deque(maxlen=2)
        self._leaks = leaks

    def reset(self, **kwargs: Any) -> Any:
        if not self._leaks:
            self.frames.clear()
        return super().reset(**kwargs)

    def observation(self, observation: Any) -> Any:
        self.frames.append(observation)
        return np.concatenate([self.frames[0], observation]).astype(np.float32)


_CLASSES: dict[tuple[type, str], Any] = {}


def _named(base: type, function: Function) -> Any:
    """Return a subclass with the name of a function; the same one for all sub-envs."""
    name = type(function).__name__
    return _CLASSES.setdefault((base, name), type(name, (base,), {}))


def _wrapped(env: Any, base: type, stages: Iterable[Function]) -> Any:
    for function in stages:
        env = _named(base, function)(env, function)
    return env


def single(name: str, plan: Plan) -> Any:
    """Return an env with all stages as wrappers."""
    env = gym.make(name, max_episode_steps=LIMIT, disable_env_checker=True)
    return _wrapped(History(env, leaks=plan.leaks), Stage, plan.stages)


def in_sub_envs(name: str, plan: Plan) -> Any:
    """Return a vector env with all stages in its sub-envs."""
    return SyncVectorEnv([partial(single, name, plan)] * 2)


class VectorStage(VectorObservationWrapper):
    """Applies a function to the observations of a vector env."""

    def __init__(self, env: Any, function: Function) -> None:
        super().__init__(env)
        self._function = function
        vars(self).update(vars(function))

    def observations(self, observations: Any) -> Any:
        return np.asarray(self._function(observations), np.float32)


def outside(name: str, plan: Plan) -> Any:
    """Return a vector env with stages around it, and a history in its sub-envs."""
    inner = replace(plan, stages=())
    return _wrapped(SyncVectorEnv([partial(single, name, inner)] * 2), VectorStage, plan.stages)


# ------------------------------------------------------------------------------ others


class VecStage(VecEnvWrapper):
    """Applies a function to the observations of a VecEnv."""

    def __init__(self, venv: Any, function: Function) -> None:
        super().__init__(venv)
        self._function = function
        vars(self).update(vars(function))

    def reset(self) -> Any:
        return np.asarray(self._function(self.venv.reset()), np.float32)

    def step_wait(self) -> Any:
        observations, rewards, dones, infos = self.venv.step_wait()
        return np.asarray(self._function(observations), np.float32), rewards, dones, infos


def vec_env(name: str, plan: Plan) -> Any:
    """Return a VecEnv of Stable-Baselines3 with all stages in its sub-envs."""
    return DummyVecEnv([partial(single, name, plan)] * 2)


def outside_vec_env(name: str, plan: Plan) -> Any:
    """Return a VecEnv of Stable-Baselines3 with stages around it."""
    inner = replace(plan, stages=())
    return _wrapped(DummyVecEnv([partial(single, name, inner)] * 2), VecStage, plan.stages)


class ChainStage(Transform):
    """Applies a function to the observation of a chain of tdx."""

    def __init__(self, function: Function) -> None:
        super().__init__(["observation"], ["observation"])
        self.function = function
        for name, value in vars(function).items():
            self.register_buffer(name, torch.as_tensor(value))

    def _apply_transform(self, value: Any) -> Any:
        return self.function(value)


def chain(name: str, plan: Plan) -> Any:
    """Return a chain of tdx, whose history is its own."""
    frames = CatFrames(2, dim=-1, in_keys=["observation"])
    stages = (_named(ChainStage, part)(part) for part in plan.stages)
    return TransformedEnv(GymEnv(name, max_episode_steps=LIMIT), Compose(frames, *stages))


def torchrl(name: str, plan: Plan) -> Any:
    """Return a chain of TorchRL, whose history is its own."""
    from torchrl import envs

    def apply(self: Any, value: Any) -> Any:
        return self.function(value)

    chain = [envs.CatFrames(2, dim=-1, in_keys=["observation"])]
    for function in plan.stages:
        kind = _CLASSES.setdefault(
            (envs.Transform, type(function).__name__),
            type(type(function).__name__, (envs.Transform,), {"_apply_transform": apply}),
        )
        stage = kind(["observation"], ["observation"])
        stage.function = function
        for key, value in vars(function).items():
            stage.register_buffer(key, torch.as_tensor(value))
        chain.append(stage)
    env = envs.GymEnv(name, max_episode_steps=LIMIT)
    return envs.TransformedEnv(env, envs.Compose(*chain))


class TensorStage(torch.nn.Module):
    """Applies a function to a tensor."""

    def __init__(self, function: Function) -> None:
        super().__init__()
        self.function = function
        for name, value in vars(function).items():
            self.register_buffer(name, torch.as_tensor(value))

    def forward(self, value: Any) -> Any:
        return self.function(value)


def callables(plan: Plan) -> Any:
    """Return a list of callables."""
    return list(plan.stages)


def sequential(plan: Plan) -> Any:
    """Return a ``torch.nn.Sequential``."""
    return torch.nn.Sequential(*(_named(TensorStage, part)(part) for part in plan.stages))


def compose(plan: Plan) -> Any:
    """Return a ``Compose`` of torchvision."""
    from torchvision import transforms

    return transforms.Compose(list(plan.stages))


def tianshou(name: str, plan: Plan) -> Any:
    """Return a vector env of Tianshou with all stages in its sub-envs."""
    require_package("tianshou")
    from tianshou.env import DummyVectorEnv

    return DummyVectorEnv([partial(single, name, plan)] * 2)


def puffer(name: str, plan: Plan) -> Any:
    """Return an env of PufferLib in its vector env."""
    require_package("pufferlib")
    import pufferlib.emulation
    import pufferlib.vector

    def create(**_: Any) -> Any:
        return pufferlib.emulation.GymnasiumPufferEnv(env_creator=partial(single, name, plan))

    return pufferlib.vector.make(create, num_envs=2, backend=pufferlib.vector.Serial)


def rllib(name: str, plan: Plan) -> Any:
    """Return a connector pipeline of RLlib."""
    require_package("tree")
    from ray.rllib.connectors.connector_v2 import ConnectorV2
    from ray.rllib.connectors.env_to_module import EnvToModulePipeline

    def apply(self: Any, *, batch: Any, episodes: Any, **_: Any) -> Any:
        for episode in self.single_agent_episode_iterator(episodes):
            value = np.asarray(self.function(episode.get_observations(-1)), np.float32)
            episode.observations.data[-1] = value
        return batch

    env = gym.make(name)
    pieces = []
    for function in plan.stages:
        kind: Any = type(type(function).__name__, (ConnectorV2,), {"__call__": apply})
        piece = kind()
        piece.function = function
        vars(piece).update(vars(function))
        pieces.append(piece)
    known: Sequence[Any] = (env.observation_space, env.action_space)
    return EnvToModulePipeline(*known, connectors=pieces)


def parallel(plan: Plan) -> Any:
    """Return a parallel env of PettingZoo with wrappers."""
    require_package("pettingzoo")
    from pettingzoo import ParallelEnv
    from pettingzoo.utils import BaseParallelWrapper

    class Walk(ParallelEnv):  # type: ignore[misc,unused-ignore]
        metadata: dict[str, Any] = {"name": "walk_v0"}  # noqa: RUF012
        possible_agents = ["first", "second"]  # noqa: RUF012
        render_mode = None

        def observation_space(self, agent: str) -> Any:
            return spaces.Box(-10, 10, (3,), np.float32)

        def action_space(self, agent: str) -> Any:
            return spaces.Discrete(3)

        def reset(self, seed: Any = None, options: Any = None) -> Any:
            if seed is not None:
                self.generator = np.random.default_rng(seed)
            self.agents, self.count = list(self.possible_agents), 0
            return self._observe(), {agent: {} for agent in self.agents}

        def _observe(self) -> Any:
            draw = self.generator.uniform
            return {agent: draw(-1, 1, 3).astype(np.float32) for agent in self.possible_agents}

        def step(self, actions: Any) -> Any:
            self.count += 1
            acting, is_over = self.possible_agents, self.count == LIMIT
            self.agents = [] if is_over else list(acting)
            return (
                self._observe(),
                dict.fromkeys(acting, 1.0),
                dict.fromkeys(acting, False),
                dict.fromkeys(acting, is_over),
                {agent: {} for agent in acting},
            )

    class ParallelStage(BaseParallelWrapper):  # type: ignore[misc,unused-ignore]
        def __init__(self, env: Any, function: Function) -> None:
            super().__init__(env)
            self._function = function
            self.__dict__.update(vars(function))

        def observation_space(self, agent: str) -> Any:
            return spaces.Box(-np.inf, np.inf, (3,), np.float32)

        def _apply(self, values: Any) -> Any:
            return {
                agent: np.asarray(self._function(value), np.float32)
                for agent, value in values.items()
            }

        def reset(self, seed: Any = None, options: Any = None) -> Any:
            values, infos = self.env.reset(seed, options)
            return self._apply(values), infos

        def step(self, actions: Any) -> Any:
            values, *rest = self.env.step(actions)
            return self._apply(values), *rest

    return _wrapped(Walk(), ParallelStage, plan.stages)

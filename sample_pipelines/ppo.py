"""Train CartPole-v1 or Pendulum-v1 with PPO, with the envs in one process or in several.

Run it from the folder above: python -m sample_pipelines.ppo --env Pendulum-v1 --backend parallel

The backends only differ in how the envs are stepped: ``serial`` is ``tdx.SerialEnv``, ``parallel``
is ``tdx.ParallelEnv``, and ``sb3`` is the ``SubprocVecEnv`` of Stable-Baselines3.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import gymnasium
import numpy as np
import torch
from tensordict import TensorDict, TensorDictBase
from tensordict.nn import TensorDictModule
from torch import Tensor, nn
from torch.distributions import Categorical, Distribution, Independent, Normal

from tdx import GymEnv, ParallelEnv, RewardSum, SerialEnv, TransformedEnv

HORIZON = 128
EPOCHS = 10
MINIBATCH = 256
LEARNING_RATE = 1e-3
GAE_LAMBDA = 0.95


@dataclass(frozen=True, slots=True)
class Task:
    """An env and the settings that suit it.

    Args:
        observations: Number of observations.
        actions: Number of actions: categories or dims.
        is_discrete: True if the actions are categories.
        gamma: Discount.
        reward_scale: Factor for the rewards that are learned from.
    """

    observations: int
    actions: int
    is_discrete: bool
    gamma: float
    reward_scale: float


TASKS = {
    "CartPole-v1": Task(4, 2, True, gamma=0.99, reward_scale=1.0),
    "Pendulum-v1": Task(3, 1, False, gamma=0.9, reward_scale=0.1),
}


@dataclass(frozen=True, slots=True)
class Training:
    """Result of a training.

    Args:
        returns: Return of each episode, in the order of their ends.
        policy: The trained policy.
        seconds: Duration.
        collecting: Part of the duration for which the envs were stepped.
    """

    returns: list[float]
    policy: Policy
    seconds: float
    collecting: float


def mlp(inputs: int, outputs: int) -> nn.Sequential:
    """Return a network of two hidden layers."""
    return nn.Sequential(
        nn.Linear(inputs, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, outputs)
    )


class Policy(nn.Module):
    """Draws an action, and returns it with its log-probability."""

    def __init__(self, task: Task) -> None:
        super().__init__()
        self.network = mlp(task.observations, task.actions)
        self.log_std = None if task.is_discrete else nn.Parameter(torch.zeros(task.actions))

    def distribution(self, observation: Tensor) -> Distribution:
        """Return the distribution of actions."""
        output = self.network(observation)
        if self.log_std is None:
            return Categorical(logits=output)
        return Independent(Normal(output, self.log_std.exp()), 1)

    def forward(self, observation: Tensor) -> tuple[Tensor, Tensor]:
        """Draw an action."""
        distribution = self.distribution(observation)
        action = distribution.sample()
        return action, distribution.log_prob(action)


# Collecting


class Collector(Protocol):
    """Steps a batch of envs with a policy."""

    def collect(self, policy: Policy) -> TensorDictBase:
        """Return the next ``HORIZON`` steps of all envs, ``[B, T]``."""

    def close(self) -> None:
        """Close the envs."""


class TdxCollector:
    """Envs of tdx."""

    def __init__(self, env_id: str, envs: int, processes: int | None) -> None:
        def make() -> GymEnv:
            return GymEnv(env_id, categorical_action_encoding=True)

        batch: Any = SerialEnv(envs, make)
        if processes is not None:
            batch = ParallelEnv(envs, make, processes=processes)
        self.env = TransformedEnv(batch, RewardSum())
        self.env.set_seed(0)
        self.start = self.env.reset()

    def collect(self, policy: Policy) -> TensorDictBase:
        """Roll out, and reset the envs whose episode ended with the last step."""
        actor = TensorDictModule(policy, in_keys=["observation"], out_keys=["action", "log_prob"])
        steps = self.env.rollout(
            HORIZON, actor, tensordict=self.start, auto_reset=False, break_when_any_done=False
        )
        self.start = self.env.maybe_reset(self.env.step_mdp(steps[:, -1]))
        return steps

    def close(self) -> None:
        """Close the envs."""
        self.env.close()


class SB3Collector:
    """Envs of Stable-Baselines3, each in its own process."""

    def __init__(self, env_id: str, envs: int) -> None:
        from stable_baselines3.common.vec_env import SubprocVecEnv, VecMonitor

        def make() -> gymnasium.Env[Any, Any]:
            return gymnasium.make(env_id, disable_env_checker=True)

        self.env = VecMonitor(SubprocVecEnv([make] * envs))
        self.env.seed(0)
        self.observation = self._read(self.env.reset())

    def collect(self, policy: Policy) -> TensorDictBase:
        """Step the envs; they reset themselves."""
        steps = []
        for _ in range(HORIZON):
            action, log_prob = policy(self.observation)
            observation, reward, done, infos = self.env.step(action.numpy())
            final, truncated = np.array(observation), np.zeros_like(done)
            returns = np.zeros_like(reward)
            for row in done.nonzero()[0]:
                final[row] = infos[row]["terminal_observation"]
                truncated[row] = infos[row]["TimeLimit.truncated"]
                returns[row] = infos[row]["episode"]["r"]
            following = {
                "observation": self._read(final),
                "reward": torch.as_tensor(reward).unsqueeze(-1),
                "terminated": torch.as_tensor(done & ~truncated).unsqueeze(-1),
                "done": torch.as_tensor(done).unsqueeze(-1),
                "episode_reward": torch.as_tensor(returns).unsqueeze(-1),
            }
            step = {"observation": self.observation, "action": action, "log_prob": log_prob}
            steps.append(TensorDict({**step, "next": following}, self.env.num_envs))
            self.observation = self._read(observation)
        return torch.stack(steps, 1)

    def _read(self, observation: Any) -> Tensor:
        return torch.as_tensor(observation, dtype=torch.float32)

    def close(self) -> None:
        """Close the envs."""
        self.env.close()


# Learning


def estimate_advantage(
    steps: TensorDictBase, critic: nn.Module, task: Task
) -> tuple[Tensor, Tensor]:
    """Return the advantage and the target value of each step, ``[B, T]``."""
    value = critic(steps["observation"]).squeeze(-1)
    next_value = critic(steps["next", "observation"]).squeeze(-1)
    reward, terminated, done = (
        steps["next", key].squeeze(-1) for key in ("reward", "terminated", "done")
    )
    error = task.reward_scale * reward + task.gamma * next_value * ~terminated - value
    advantage, following = torch.zeros_like(error), torch.zeros(len(error))
    for step in reversed(range(error.shape[1])):
        following = error[:, step] + task.gamma * GAE_LAMBDA * following * ~done[:, step]
        advantage[:, step] = following
    return advantage, advantage + value


def train(env_id: str, collector: Collector, total_steps: int, envs: int) -> Training:
    """Train a policy.

    Args:
        env_id: Key of ``TASKS``.
        collector: Steps the envs.
        total_steps: Number of steps of all envs together.
        envs: Number of envs.
    """
    task = TASKS[env_id]
    policy, critic = Policy(task), mlp(task.observations, 1)
    parameters = [*policy.parameters(), *critic.parameters()]
    optimizer = torch.optim.Adam(parameters, LEARNING_RATE, eps=1e-5)

    def update(batch: TensorDictBase) -> None:
        log_prob = policy.distribution(batch["observation"]).log_prob(batch["action"])
        ratio = (log_prob - batch["log_prob"]).exp()
        advantage = batch["advantage"]
        advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
        gain = torch.min(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage).mean()
        value_error = (critic(batch["observation"]).squeeze(-1) - batch["target"]).pow(2).mean()
        optimizer.zero_grad()
        (0.5 * value_error - gain).backward()
        nn.utils.clip_grad_norm_(parameters, 0.5)
        optimizer.step()

    returns: list[float] = []
    collecting, started = 0.0, time.perf_counter()
    for step in range(0, total_steps, envs * HORIZON):
        optimizer.param_groups[0]["lr"] = LEARNING_RATE * (1 - step / total_steps)
        before = time.perf_counter()
        with torch.no_grad():
            steps = collector.collect(policy)
            collecting += time.perf_counter() - before
            advantage, target = estimate_advantage(steps, critic, task)
        samples = steps.select("observation", "action", "log_prob")
        samples.update({"advantage": advantage, "target": target})
        samples = samples.reshape(-1)
        for _ in range(EPOCHS):
            for indices in torch.randperm(len(samples)).split(MINIBATCH):
                update(samples[indices])
        returns += steps["next", "episode_reward"][steps["next", "done"]].tolist()
    return Training(returns, policy, time.perf_counter() - started, collecting)


def main(arguments: Sequence[str] | None = None) -> Training:
    """Parse the command line, train, and print the duration and the return."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--env", choices=TASKS, default="CartPole-v1")
    parser.add_argument("--backend", choices=("serial", "parallel", "sb3"), default="parallel")
    parser.add_argument("--processes", type=int, default=2, help="of the parallel backend")
    parser.add_argument("--envs", type=int, default=8)
    parser.add_argument("--steps", type=int, default=120_000, help="of all envs together")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    # Processes have one thread each; matrix products round differently with others.
    torch.set_num_threads(1)
    torch.manual_seed(options.seed)
    collector: Collector
    if options.backend == "sb3":
        collector = SB3Collector(options.env, options.envs)
    else:
        processes = options.processes if options.backend == "parallel" else None
        collector = TdxCollector(options.env, options.envs, processes)
    try:
        result = train(options.env, collector, options.steps, options.envs)
    finally:
        collector.close()
    last = result.returns[-20:]
    sys.stdout.write(
        f"{options.env} {options.backend}: {options.steps:,} steps in {result.seconds:.1f} s, "
        f"{result.collecting:.1f} s of it in the envs; mean return of the last {len(last)} "
        f"episodes: {sum(last) / max(len(last), 1):.0f}\n"
    )
    return result


if __name__ == "__main__":
    main()

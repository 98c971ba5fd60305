"""P3: a step with TensorDicts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from tdx.foundation.tensordicts import new_tensordict, read, write
from tests.benchmarks.bare import make_env
from tests.benchmarks.bars import (
    CHAIN_6_STEP,
    CHAIN_6_STEP_NEW,
    PLAIN_STEP,
    PLAIN_STEP_NEW,
    Bar,
    Contestant,
)
from tests.benchmarks.chains import ENV, Maker, chain_6_env, libraries, plain_env
from tests.benchmarks.conftest import Compare, Run

# An episode of Pendulum-v1 has 200 steps.
STEPS = 150
ROUNDS = 25


class Loop:
    """Loop of steps from the root of an episode.

    Args:
        env: Env to step.
        again: True to step the same TensorDict repeatedly, which then contains the last ``next``.
            False: each step has its own TensorDict, as after ``step_mdp``.
    """

    def __init__(self, env: Any, *, again: bool) -> None:
        self.env = env
        self.again = again
        self.reset()

    def reset(self) -> None:
        """Start an episode, before the timed steps."""
        root = self.env.reset()
        root["action"] = torch.zeros(1)
        self.roots = [root if self.again else root.clone(False) for _ in range(STEPS)]

    def steps(self) -> None:
        """Run the timed steps."""
        step = self.env.step
        for root in self.roots:
            step(root)


@pytest.mark.parametrize(
    ("bar", "make", "again"),
    [
        (PLAIN_STEP, plain_env, True),
        (CHAIN_6_STEP, chain_6_env, True),
        (PLAIN_STEP_NEW, plain_env, False),
        (CHAIN_6_STEP_NEW, chain_6_env, False),
    ],
    ids=["plain", "chain6", "plain-new", "chain6-new"],
)
def test_step_with_tensordicts(compare: Compare, bar: Bar, make: Maker, again: bool) -> None:
    runs: dict[Contestant, Run] = {"bare": _converted() if bar is PLAIN_STEP_NEW else _bare()}
    for library in libraries():
        env = make(library)
        env.set_seed(0)
        loop = Loop(env, again=again)
        runs[library] = Run(loop.steps, STEPS, loop.reset)
        loop.steps()
        assert ("next", "reward") in loop.roots[-1].keys(include_nested=True)
    compare(bar, runs, rounds=ROUNDS)


def _bare() -> Run:
    env = make_env(ENV)
    action = torch.zeros(1).numpy()

    def steps() -> None:
        for _ in range(STEPS):
            env.step(action)

    return Run(steps, STEPS, lambda: env.reset(seed=0))


def _converted() -> Run:
    """Return the minimal step with TensorDicts: new tensors of the results in ``next``."""
    env, loop = make_env(ENV), Loop(plain_env("tdx"), again=False)
    tensor, array, false = torch.from_numpy, np.array, np.zeros(1, np.bool_).copy

    def steps() -> None:
        step = env.step
        for root in loop.roots:
            observation, reward, _, _, _ = step(read(root, "action").numpy())
            fields = {
                "observation": tensor(observation.copy()),
                "reward": tensor(array(reward, np.float32, ndmin=1)),
                **{name: tensor(false()) for name in ("done", "terminated", "truncated")},
            }
            write(root, "next", new_tensordict(fields, root.batch_size, None))

    def before_each() -> None:
        env.reset(seed=0)
        loop.reset()

    return Run(steps, STEPS, before_each)

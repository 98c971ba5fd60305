"""P3: one step through the TensorDict interface."""

from __future__ import annotations

from typing import Any

import gymnasium
import pytest
import torch

from tests.benchmarks.bars import CHAIN_6_STEP, PLAIN_STEP, Bar
from tests.benchmarks.chains import ENV, Library, Maker, chain_6_env, plain_env
from tests.benchmarks.conftest import Measure

# One episode of Pendulum-v1 has 200 steps.
STEPS = 150
ROUNDS = 12


class Loop:
    """Steps of one episode from its root, all with the same action."""

    def __init__(self, env: Any) -> None:
        self.env = env
        self.reset()

    def reset(self) -> None:
        """Start an episode; not timed."""
        self.root = self.env.reset()
        self.root["action"] = torch.zeros(1)

    def steps(self) -> None:
        """What is timed."""
        step, root = self.env.step, self.root
        for _ in range(STEPS):
            step(root)


@pytest.mark.parametrize(
    ("bar", "make"), [(PLAIN_STEP, plain_env), (CHAIN_6_STEP, chain_6_env)], ids=["plain", "chain6"]
)
@pytest.mark.parametrize("library", ["tdx", "TorchRL"])
def test_step(measure: Measure, bar: Bar, make: Maker, library: Library) -> None:
    env = make(library)
    env.set_seed(0)
    loop = Loop(env)
    measure(bar, library, loop.steps, rounds=ROUNDS, units=STEPS, before_each=loop.reset)
    assert ("next", "reward") in loop.root.keys(include_nested=True)


@pytest.mark.parametrize("bar", [PLAIN_STEP, CHAIN_6_STEP], ids=["plain", "chain6"])
def test_bare_step(measure: Measure, bar: Bar) -> None:
    env = gymnasium.make(ENV)
    action = torch.zeros(1).numpy()

    def steps() -> None:
        for _ in range(STEPS):
            env.step(action)

    measure(bar, "bare", steps, rounds=ROUNDS, units=STEPS, before_each=lambda: env.reset(seed=0))
    assert env.step(action)[0].shape == (3,)

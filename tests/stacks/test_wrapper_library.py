"""A stack of another wrapper library, written as `docs/contributing.md` says."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

import tdx
from tdx.core import StepTrace
from tdx.stacks.gymnasium.level_stack import LevelStack
from tdx.stacks.gymnasium.levels import Level
from tdx.stacks.gymnasium.stack import GymnasiumDriver

PAGE = Path(__file__).parents[2] / "docs" / "contributing.md"


class Layer:
    """Wrapper of a library that is not Gymnasium's, around envs of Gymnasium.

    Args:
        inner: The env or layer inside.
    """

    def __init__(self, inner: Any) -> None:
        self.inner = inner
        self.observation_space = inner.observation_space
        self.action_space = inner.action_space

    def reset(self, seed: int | None = None) -> Any:
        return self.inner.reset(seed=seed)

    def step(self, action: Any) -> Any:
        return self.inner.step(action)

    def close(self) -> None:
        self.inner.close()


class Halved(Layer):
    def step(self, action: Any) -> Any:
        observation, reward, *flags = self.inner.step(action / 2)
        return observation, reward / 2, *flags


class Averaged(Layer):
    def __init__(self, inner: Any) -> None:
        super().__init__(inner)
        self.mean = np.zeros(3)

    def step(self, action: Any) -> Any:
        observation, *rest = self.inner.step(action)
        self.mean = 0.9 * self.mean + 0.1 * observation
        return observation - self.mean.astype(np.float32), *rest


class LayerStack(LevelStack):
    """An env with its layers; each layer is a stage."""

    kind = "layers"
    done_keys = ("done", "terminated", "truncated")

    def __init__(self, target: Any) -> None:
        layers = list(_layers_of(target))
        levels = [
            Level(index, (layer,), num_envs=None) for index, layer in enumerate(layers[::-1], -1)
        ]
        super().__init__(target, levels)

    def driver(self, policy: Any = None) -> GymnasiumDriver:
        """See :class:`~tdx.stacks.Stack`; resets and steps as Gymnasium does."""
        return GymnasiumDriver(self, policy)


def _layers_of(target: Any) -> Iterator[Any]:
    while isinstance(target, Layer):
        yield target
        target = target.inner
    yield target


def make() -> LayerStack:
    return LayerStack(Averaged(Halved(gymnasium.make("Pendulum-v1").unwrapped)))


def test_page_shows_the_stack_of_this_test() -> None:
    page = PAGE.read_text(encoding="utf-8")
    for part in (LayerStack, _layers_of):
        assert inspect.getsource(part) in page


def test_all_jobs_work_on_a_stack_that_lists_its_levels() -> None:
    stack = make()
    assert [stage.name for stage in stack.stages] == ["Halved", "Averaged"]
    traces: list[StepTrace] = []
    with stack.attach(traces.append):
        stack.target.reset(seed=0)
        stack.target.step(np.ones(1, np.float32))
    written = {(stage.place, stage.direction): set(stage.written) for stage in traces[1].stages}
    assert written["0 Halved", "forward"] == {"reward"}
    assert written["0 Halved", "inverse"] == {"action"}
    assert written["1 Averaged", "forward"] == {"observation"}
    with tdx.profile(stack) as measured:
        stack.target.step(np.ones(1, np.float32))
    labels = [row.part.label for row in measured.result.modes[0].rows]
    assert labels == ["env Pendulum-v1", "wrapper Halved", "wrapper Averaged"]
    assert set(stack.state()[1]) == {"mean"}
    assert tdx.inspect(stack, steps=3, seed=0).values is not None
    report = tdx.check_contract(make(), tdx.freeze(make(), steps=4))
    assert report.verdict == "same"

"""A package of a third party: the kind of stack that opens the chains of a toy framework."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from tensordict import TensorDict

from tdx import Bounded, Composite, Unbounded
from tdx.core import StageSpecs, StageTrace, StepTrace, ValueVersion
from tdx.core.meter import Part
from tdx.stacks import Stack, StageInfo
from tests.stacks.toy_framework import ToyChain


class ToyStack(Stack):
    kind, name, done_keys = "toy", "Walk", ()
    reset_due = False

    def __init__(self, target: ToyChain) -> None:
        self.target, self._stages = target, tuple(target.stages)

    @property
    def stages(self) -> list[StageInfo]:
        return [StageInfo(i, type(x).__name__, vars(x)) for i, x in enumerate(self._stages)]

    def specs(self) -> list[StageSpecs]:
        none, actions = Composite(), Composite(action=Bounded(-1, 1, ()))
        inputs = Composite(full_action_spec=actions, full_state_spec=none)
        values = Composite(observation=Unbounded(()))
        after = Composite(full_observation_spec=values, full_reward_spec=none, full_done_spec=none)
        names = ["Walk", *(each.name for each in self.stages)]
        return [StageSpecs(i, each, None, inputs, after) for i, each in enumerate(names, -1)]

    def driver(self, policy: Any = None) -> Any:
        return self

    def reset(self, seed: int | None) -> None:
        self.target.run(0.0)

    def step(self, action: Any = None) -> None:
        self.target.run(random.uniform(-1, 1) if action is None else action)

    @contextmanager
    def replaced(self, wrap: Callable[[int, str, Any], Any]) -> Iterator[None]:
        chain, before = self.target, dict(vars(self.target))
        chain.move = wrap(-1, "Walk", chain.move)
        chain.stages = [wrap(i, type(x).__name__, x) for i, x in enumerate(self._stages)]
        try:
            yield
        finally:
            vars(chain).update(before)

    @contextmanager
    def attach(self, on_trace: Callable[[StepTrace], Any]) -> Iterator[None]:
        found: list[StageTrace] = []

        def wrap(index: int, name: str, call: Any) -> Any:
            def record(value: float) -> float:
                start, result = time.perf_counter_ns(), float(call(value))
                kind: Any = "env" if index < 0 else "stage"
                took = time.perf_counter_ns() - start
                version = ValueVersion("observation", index + 1, "forward", torch.tensor(result))
                written: Any = {"observation": version}
                found.append(StageTrace(kind, index, name, "forward", "step", took, (), written))
                return result

            return record

        with self.replaced(wrap):
            yield
        data = TensorDict(next=TensorDict(observation=found[-1].written["observation"].value))
        on_trace(StepTrace(0, 0, 0, "step", data, tuple(found), {}, 0))

    def measure(self, meter: Any, *, all_stages: bool = False) -> AbstractContextManager[None]:
        works: Any = ("wrapper", "env")
        return self.replaced(lambda i, n, call: meter.timed(Part(works[i < 0], i, n, "step"), call))

    def seeded(self, seed: int | None) -> AbstractContextManager[None]:
        return nullcontext(random.seed(seed))

    def close(self) -> None:
        pass


class ToyKind:
    title = "a chain of the toy framework"
    open = ToyStack

    def accepts(self, target: Any) -> bool:
        return isinstance(target, ToyChain)


KIND = ToyKind()

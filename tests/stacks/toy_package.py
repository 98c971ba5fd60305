"""A package of a third party: a toy framework, and the kind of stack that opens its chains."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

from tensordict import TensorDict
from torch import tensor

from tdx import Bounded, Composite, Unbounded
from tdx.core import StageSpecs, StageTrace, StepTrace, ValueVersion
from tdx.core.meter import Part
from tdx.stacks import StackTracer, StageInfo


class Walk:
    def reset(self) -> float:
        self.position = 0.0
        return self.position

    def step(self, action: float) -> float:
        self.position += action
        return self.position


class Scale:
    def __init__(self, factor: float) -> None:
        self.factor = factor

    def __call__(self, value: float) -> float:
        return value * self.factor


class Chain:
    def __init__(self, env: Walk, *stages: Scale) -> None:
        self.env, self.stages = env, list[Callable[[float], float]](stages)

    def run(self, method: str, *args: float) -> float:
        value: float = getattr(self.env, method)(*args)
        for stage in self.stages:
            value = stage(value)
        return value


class ToyStack:
    kind, name, batch_locked = "toy", "Walk", True
    notes, free_keys, done_keys = (), (), ("done",)

    def __init__(self, target: Chain) -> None:
        self.target, self.reset_due = target, True
        info = [(type(each).__name__, vars(each)) for each in target.stages]
        self.stages = tuple(StageInfo(i, *each) for i, each in enumerate(info))

    def specs(self) -> list[StageSpecs]:
        actions = Composite(full_action_spec=Composite(action=Bounded(-1, 1, ())))
        outputs = Composite(full_observation_spec=Composite(observation=Unbounded(())))
        names = ["Walk", *(each.name for each in self.stages)]
        return [StageSpecs(i, n, None, actions, outputs) for i, n in enumerate(names, start=-1)]

    def tracer(self, policy: Any = None) -> StackTracer:
        return StackTracer(self, self)

    def driver(self, policy: Any = None) -> ToyStack:
        return self

    def reset(self, seed: int | None) -> None:
        self.target.run("reset")
        self.reset_due = False

    def step(self, action: Any = None) -> None:
        self.target.run("step", random.uniform(-1, 1) if action is None else action)

    @contextmanager
    def replaced(self, wrap: Callable[[int, str, str, Any], Any]) -> Iterator[None]:
        chain, stages = self.target, self.target.stages
        vars(chain.env).update({m: wrap(-1, "Walk", m, getattr(chain.env, m)) for m in METHODS})
        chain.stages = [wrap(each.index, each.name, "step", stages[each.index]) for each in self.stages]
        try:
            yield
        finally:
            chain.stages = stages
            for method in METHODS:
                del vars(chain.env)[method]

    @contextmanager
    def attach(self, on_trace: Callable[[StepTrace], Any]) -> Iterator[None]:
        found: list[StageTrace] = []
        phases: list[Any] = ["step"]

        def wrap(index: int, name: str, method: str, call: Any) -> Any:
            def recorded(*args: float) -> float:
                if index < 0:
                    phases[0] = method
                start = time.perf_counter_ns()
                value: float = call(*args)
                spent = time.perf_counter_ns() - start
                version = ValueVersion("observation", index + 1, "forward", tensor(value))
                kind: Any = "env" if index < 0 else "stage"
                written = {"observation": version}
                found.append(StageTrace(kind, index, name, "forward", phases[0], spent, (), written))
                return value

            return recorded

        with self.replaced(wrap):
            yield
        result = TensorDict(observation=found[-1].written["observation"].value)
        data = TensorDict(next=result) if phases[0] == "step" else result
        on_trace(StepTrace(0, 0, 0, phases[0], data, tuple(found), {}, 0, None))

    def measure(self, meter: Any, *, all_stages: bool = False) -> Any:
        lanes: Any = {"reset": "reset", "step": "step"}
        works: Any = ("wrapper", "env")
        return self.replaced(
            lambda i, name, method, call: meter.timed(Part(works[i < 0], i, name, lanes[method]), call)
        )

    def state(self) -> dict[int, dict[str, Any]]:
        return {}

    def seeded(self, seed: int | None) -> Any:
        random.seed(seed)
        return nullcontext()

    def close(self) -> None: ...


METHODS = ("reset", "step")


class ToyKind:
    title = "a chain of the toy framework"

    def accepts(self, target: Any) -> bool:
        return isinstance(target, Chain)

    def open(self, target: Any) -> ToyStack:
        return ToyStack(target)


KIND = ToyKind()


def make() -> Chain:
    return Chain(Walk(), Scale(2.0), Scale(-0.5))

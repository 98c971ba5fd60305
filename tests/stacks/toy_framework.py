"""A toy framework: an env that moves, and a chain of functions of its position."""

from __future__ import annotations

from typing import Any


class Walk:
    position = 0.0

    def move(self, action: float) -> float:
        self.position += action
        return self.position


class Scale:
    def __init__(self, factor: float) -> None:
        self.factor = factor

    def __call__(self, value: float) -> float:
        return value * self.factor


class ToyChain:
    def __init__(self, env: Walk, *stages: Any) -> None:
        self.move, self.stages = env.move, list(stages)

    def run(self, action: float) -> float:
        value = self.move(action)
        for stage in self.stages:
            value = stage(value)
        return value


def make() -> ToyChain:
    return ToyChain(Walk(), Scale(2.0), Scale(-0.5))

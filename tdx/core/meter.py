"""Measuring of a running env: the parts that take time, and the protocol of a meter.

An env without a meter runs unwrapped functions. With a meter they are wrapped when a run is
prepared, so that the loops contain no checks. Measured calls nest; the time of a part is that of
its calls without the measured calls inside them. In a planned rollout::

    unattributed                            env.rollout, env.iter_rollout
    ├─ tensordicts of a reset               env.reset
    │  ├─ env ... reset
    │  └─ each stage, reset
    ├─ set-up of a rollout                  prepare_run
    ├─ step loop                            once per chunk
    │  ├─ policy, env, immediate stages     in each step
    │  └─ env and immediate stages, reset   of the rows that are done
    ├─ chunk bookkeeping                    once per chunk
    │  └─ deferred stages                   counted by the steps of the chunk
    └─ assembly

and in an eager one, or in ``env.step`` alone::

    step loop                               EagerRun
    ├─ policy
    ├─ tensordicts of a step                env.step
    │  ├─ stages, inverse
    │  ├─ env ... step                      for an env of another library: conversion, and its own
    │  └─ stages, forward
    ├─ step_mdp
    └─ maybe_reset
       └─ tensordicts of a reset
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, TypeVar

Work = Literal["env", "stage", "policy", "wrapper", "engine"]
Lane = Literal["forward", "inverse", "reset", "step", "specs"]

AnyFunction = TypeVar("AnyFunction", bound=Callable[..., object])


@dataclass(frozen=True, slots=True, order=True)
class Part:
    """A part of a rollout that takes time."""

    work: Work
    index: int  # of a stage, from 0; nested chains continue the count. -1 for anything else
    name: str  # class name of a stage, or the name of the work
    lane: Lane  # "forward" or "inverse" in a step, or "reset"
    upto: int = -1  # Index of the last stage, if neighbors have become one function.

    @property
    def label(self) -> str:
        """Display name: ``2 CatFrames``, ``0-3 ToTensorImage ...``, ``env Pendulum-v1``."""
        if self.work == "stage":
            place = str(self.index) if self.upto < 0 else f"{self.index}-{self.upto}"
            return f"{place} {self.name}"
        return self.name if self.work == "engine" else f"{self.work} {self.name}"


class Meter(Protocol):
    """Measures the calls of functions."""

    def timed(
        self, part: Part, function: AnyFunction, steps: Callable[..., int] | None = None
    ) -> AnyFunction:
        """Return the function with each of its calls measured.

        ``steps`` returns the number of steps of a call from its arguments; 1 by default.
        """
        ...

    def in_turn(self, functions: Sequence[AnyFunction]) -> Sequence[AnyFunction]:
        """Return the measured functions for a sequence that is always called in this order.

        Where one call ends the next one starts, so one reading of the clock may serve both.
        """
        ...


def engine_part(name: str) -> Part:
    """Return a part of the engine's own work."""
    return Part("engine", -1, name, "step")


def base_parts(name: str) -> tuple[Part, Part]:
    """Return the parts of the step and the reset of the env before all chains, by its name."""
    return Part("env", -1, name, "step"), Part("env", -1, name, "reset")


DRAWING = Part("policy", -1, "random", "step")
GIVING = Part("policy", -1, "sequence", "step")
UNATTRIBUTED = "unattributed"
"""Time of a rollout outside of every other part."""
LOOP = engine_part("step loop")
CHUNKS = engine_part("chunk bookkeeping")
SETUP = engine_part("set-up of a rollout")
ASSEMBLY = engine_part("assembly")
"""Stacking the steps to one TensorDict."""
LAYOUT_CHECK = engine_part("layout check")
"""Comparing the keys, shapes and dtypes of eager steps before they are stacked."""
CONVERSION = engine_part("conversion")
"""Entries of a TensorDict from the results of an env of another library, and back to its action."""
TRANSFERS = engine_part("transfers")
"""Copies between the host and the device."""

"""What an env is measured with while it runs: who is at work, and how its calls are taken up.

An env without a meter runs the very same functions as ever; one with a meter has them wrapped
when a run is put together, so that nothing is asked in its loops.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, TypeVar

from tdx.core.envs import EnvBase

Work = Literal["env", "stage", "policy", "wrapper", "engine"]
Lane = Literal["forward", "inverse", "reset", "step", "specs"]

AnyFunction = TypeVar("AnyFunction", bound=Callable[..., object])


@dataclass(frozen=True, slots=True, order=True)
class Part:
    """Something that takes time in a rollout.

    Args:
        work: what kind of thing it is.
        index: a stage's place in the chain, from 0, with nested chains run on; -1 for what is
            no stage.
        name: a stage's class name; what is done, for the engine.
        lane: which of its calls: a stage's on the way out at a step, on the way in, or at a reset.
        upto: the last stage's place, where neighbours have become one function.
    """

    work: Work
    index: int
    name: str
    lane: Lane
    upto: int = -1

    @property
    def label(self) -> str:
        """What a person reads: ``2 CatFrames``, ``0-3 ToTensorImage ...``, ``env Pendulum-v1``."""
        if self.work == "stage":
            place = str(self.index) if self.upto < 0 else f"{self.index}-{self.upto}"
            return f"{place} {self.name}"
        return self.name if self.work == "engine" else f"{self.work} {self.name}"


class Meter(Protocol):
    """Measures the calls of functions."""

    def timed(
        self, part: Part, function: AnyFunction, steps: Callable[..., int] | None = None
    ) -> AnyFunction:
        """The function, with each of its calls measured.

        Args:
            part: whose call it is.
            function: what is called.
            steps: how many steps of the rollout a call stands for, from its arguments; one by
                default.
        """
        ...

    def in_turn(self, functions: Sequence[AnyFunction]) -> Sequence[AnyFunction]:
        """Functions that :meth:`timed` has made, which are always called right after each other.

        Where one ends the next begins, so that a measurement may serve both.
        """
        ...


def meter_of(env: EnvBase) -> Meter | None:
    """What the env is measured with; ``None`` for nothing."""
    found: Meter | None = env._meter
    return found


def engine_part(name: str) -> Part:
    """A part of the engine's own work."""
    return Part("engine", -1, name, "step")


def base_parts(base: EnvBase) -> tuple[Part, Part]:
    """The step and the reset of the env before all chains."""
    name = getattr(base, "_name", None) or type(base).__name__
    return Part("env", -1, name, "step"), Part("env", -1, name, "reset")


DRAWING = Part("policy", -1, "random", "step")
GIVING = Part("policy", -1, "sequence", "step")
UNATTRIBUTED = "unattributed"
"""What a rollout does outside of every other part."""
LOOP = engine_part("step loop")
CHUNKS = engine_part("chunk bookkeeping")
SETUP = engine_part("set-up of a rollout")
ASSEMBLY = engine_part("assembly")
"""Putting the steps together as one TensorDict."""
TRANSFERS = engine_part("transfers")
"""Copies between the host and the device."""

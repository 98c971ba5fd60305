"""What a collector gathers of many steps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol

from torch import Tensor

from tdx.core.planned.inputs import Inputs
from tdx.core.transforms.chunk import Columns
from tdx.keys import NestedKey

Stop = Literal["any", "never"]


@dataclass(slots=True)
class Collected:
    """The steps of an env before its chain, and what ran along with them.

    Args:
        length: how many steps were made, ``T``.
        steps: what the env returned, ``[T, *B, ...]``.
        resets: what its resets returned, ``[R, *B, ...]``.
        times: before which step each reset was.
        masks: which rows each reset was for, ``[R, *B, ..., 1]``.
        now_steps: what each stage that ran along wrote, by its index and key.
        now_resets: the same for the resets.
        inputs: what the outside gave to each step, ``[T, *B, ...]``.
        stopped: whether an end stopped it.
        error: what was raised, if anything was; the steps before it are there.
    """

    length: int
    steps: Columns = field(default_factory=dict)
    resets: Columns = field(default_factory=dict)
    times: tuple[int, ...] = ()
    masks: Columns = field(default_factory=dict)
    now_steps: dict[int, Columns] = field(default_factory=dict)
    now_resets: dict[int, Columns] = field(default_factory=dict)
    inputs: Columns = field(default_factory=dict)
    stopped: bool = False
    error: Exception | None = None

    def cut(self, length: int, error: Exception) -> None:
        """Keep the first steps only: one after them went wrong."""
        self.length, self.stopped, self.error = length, False, error
        self.times = tuple(time for time in self.times if time < length)
        resets = len(self.times)
        for columns in (self.steps, self.inputs, *self.now_steps.values()):
            columns.update({key: value[:length] for key, value in columns.items()})
        for columns in (self.resets, self.masks, *self.now_resets.values()):
            columns.update({key: value[:resets] for key, value in columns.items()})


class Collector(Protocol):
    """Steps an env before its chain many times."""

    def collect(
        self, first: Mapping[NestedKey, Tensor], inputs: Inputs, length: int, stop: Stop
    ) -> Collected:
        """Make up to ``length`` steps.

        Args:
            first: the root's entries before the first step, ``[*B, ...]``.
            inputs: what gives the actions.
            length: the most steps to make.
            stop: whether to stop at the first end; else what ended begins anew, except after the
                last step.
        """

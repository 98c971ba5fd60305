"""Protocols of the loops that step an env before its chain, and what they collect."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import torch
from torch import Tensor

from tdx.core.envs.policies import ActionCheck
from tdx.core.meter import Meter, Part
from tdx.core.planned.actions import ActionSource
from tdx.core.planned.immediate_program import ImmediateProgram
from tdx.core.transforms.chunk import Columns, StepLimit
from tdx.keys import NestedKey

Stop = Literal["any", "never"]


@dataclass(slots=True)
class CollectedSteps:
    """The steps of an env before its chain, with the results of the immediate stages.

    Args:
        length: Number of steps, ``T``.
        steps: Output of the env's steps, ``[T, *B, ...]``.
        resets: Output of the env's resets, ``[R, *B, ...]``.
        times: For each reset, the step that follows it.
        masks: Masks of the resets, ``[R, *B, ..., 1]``.
        immediate_steps: What each immediate stage wrote, by its index and key.
        immediate_resets: The same for the resets.
        inputs: What the policy side wrote for each step, ``[T, *B, ...]``.
        stopped: True if a done flag ended the rollout.
        error: What was raised after the last of the steps.
    """

    length: int
    steps: Columns = field(default_factory=dict)
    resets: Columns = field(default_factory=dict)
    times: tuple[int, ...] = ()
    masks: Columns = field(default_factory=dict)
    immediate_steps: dict[int, Columns] = field(default_factory=dict)
    immediate_resets: dict[int, Columns] = field(default_factory=dict)
    inputs: Columns = field(default_factory=dict)
    stopped: bool = False
    error: Exception | None = None

    def cut(self, length: int, error: Exception) -> None:
        """Keep the first steps only, because the step after them failed."""
        self.length, self.stopped, self.error = length, False, error
        self.times = tuple(time for time in self.times if time < length)
        resets = len(self.times)
        for columns in (self.steps, self.inputs, *self.immediate_steps.values()):
            columns.update({key: value[:length] for key, value in columns.items()})
        for columns in (self.resets, self.masks, *self.immediate_resets.values()):
            columns.update({key: value[:resets] for key, value in columns.items()})


class Collector(Protocol):
    """Steps an env before its chain many times."""

    def collect(
        self, first: Mapping[NestedKey, Tensor], inputs: ActionSource, length: int, stop: Stop
    ) -> CollectedSteps:
        """Make up to ``length`` steps.

        Args:
            first: Root entries before the first step, ``[*B, ...]``.
            inputs: Source of the actions.
            length: Maximum number of steps.
            stop: ``any``: stop at the first done flag. ``never``: reset the done rows, except
                after the last step.
        """


@dataclass(frozen=True, slots=True)
class CollectorSetup:
    """What a collector needs to know about the chain around its env.

    Args:
        limits: Numbers of steps after which the chain ends an episode.
        immediate: The stages that run in each step.
        check: Checks the actions of a policy against the action spec.
        kernel: Image operator to apply to each observation as it arrives, if there is one.
        kernel_part: The part that ``kernel`` is measured as.
        meter: The meter of a profiled env.
        base_parts: The parts that the step and the reset of the env are measured as.
    """

    limits: Sequence[StepLimit]
    immediate: ImmediateProgram
    check: ActionCheck
    kernel: Any = None
    kernel_part: Part | None = None
    meter: Meter | None = None
    base_parts: tuple[Part, Part] | None = None


class RawRows(Protocol):
    """Rows of an env that can be stepped without TensorDicts; see ``EnvBase._raw_rows``."""

    @property
    def has_array_observations(self) -> bool:
        """True if each observation is one array, to which an image operator can be applied."""

    def collector(self, setup: CollectorSetup) -> Collector:
        """Return the collector that steps these rows."""

    def stack(
        self,
        rows: Sequence[RawRows],
        batch_size: torch.Size,
        on_chunk: Callable[[Mapping[NestedKey, Tensor]], None],
    ) -> RawRows | None:
        """Return several envs as the rows of one batch; ``None`` if that is not possible.

        Args:
            rows: The rows of each env, these included.
            batch_size: Batch size of the batch.
            on_chunk: Called with the output of the last step of each chunk, ``[*B, ...]``.
        """

    def after_chunk(self, last: Mapping[NestedKey, Tensor]) -> None:
        """Take note of the output of the last step of a chunk, ``[*B, ...]``."""

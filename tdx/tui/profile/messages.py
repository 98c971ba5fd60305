"""Messages between the Profile tab and its worker: plain data that needs no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from tdx.pipeline.model import Pipeline

PROGRESS = "progress"
PARTIAL = "partly"
ModeName = Literal["eager", "planned"]
Extra = Literal["memory", "operators", "marginal"]
EXTRAS: tuple[Extra, ...] = ("memory", "operators", "marginal")
MODES: tuple[ModeName, ...] = ("eager", "planned")
BINS = 32


@dataclass(frozen=True, slots=True)
class ProfileProgress:
    """What is being measured, and how much is done."""

    doing: str
    done: int
    of: int


@dataclass(frozen=True, slots=True)
class OperatorCost:
    """An operator of torch in a part.

    Args:
        name: Name, such as ``aten::add``.
        calls: Calls per step.
        time_us: Own time per step, measured in the operator pass.
    """

    name: str
    calls: float
    time_us: float


@dataclass(frozen=True, slots=True)
class Sync:
    """A place where the host waits for the accelerator.

    Args:
        where: ``file:line``. Empty: unknown.
        calls: Calls per step.
        call: Function that waits. Empty: unknown.
        time_us: Time of the waits per step. ``None``: not measured.
    """

    where: str
    calls: float
    call: str = ""
    time_us: float | None = None


@dataclass(frozen=True, slots=True)
class StageSaving:
    """Time that a step saves without a stage.

    Args:
        name: Class name of the stage.
        saved_us: Saved time. ``None``: unknown.
        noise_us: Uncertainty of the saved time.
        needed: Why the chain needs the stage. ``None``: it does not.
    """

    name: str
    saved_us: float | None
    noise_us: float = 0.0
    needed: str | None = None


@dataclass(frozen=True, slots=True)
class CallCost:
    """Calls of a part in one direction, in µs per call.

    Args:
        name: Direction: forward, inverse, reset, step; or a task of tdx itself.
        n: Number of timed calls.
        figures: ``p50``, ``p95``, ``p99`` and ``max``.
        step_us: Time per step.
        steps_per_call: Steps for each call: the length of a chunk, or 1 for a part that runs in
            every step.
        counts: Number of calls in each bin of the histogram.
        low_us: Start of the first bin.
        high_us: End of the last bin, which includes all larger values.
    """

    name: str
    n: int
    figures: dict[str, float]
    step_us: float
    steps_per_call: float
    counts: tuple[int, ...]
    low_us: float
    high_us: float


@dataclass(frozen=True, slots=True)
class CostRow:
    """Cost of a part of a rollout, all calls together, in µs per step.

    Args:
        work: Kind of the part.
        index: Index of the stage in the pipeline; -1 if the part is not a stage.
        upto: Index of the last stage of a fused group; -1 if there is none.
        name: Class name of the stage, or a description.
        step_us: Time in the mean step.
        median_us: Time of a step in which each call takes its median time.
        share: Share of the total time, from 0 to 1.
        repeats_us: Time in the mean step of each repeat.
        calls: Its calls, the most expensive first.
        allocated_bytes: Bytes allocated per step. ``None``: not measured.
        device_us: Time between events on the accelerator per step. ``None``: there is none.
        busy_us: Time in which the accelerator works for it, per step. ``None``: not measured.
        idle_us: Time in which the accelerator is idle before its work, per step, by cause.
        delay_us: Mean time from a launch to the start of its kernel.
        bound_by: What takes most of its time. Empty: not measured.
        evidence: Figures that this follows from.
        kernels: Kernels per step.
        launch_bound: True if the accelerator waits for the host.
        syncs: Places where the host waits for the accelerator.
        operators: Operators of torch, the most expensive first. ``None``: not measured.
        marginals: Savings by index of the stage; empty: not measured.
        numbers: Number of each stage in the chain pane; empty: its index.
    """

    work: str
    index: int
    upto: int
    name: str
    step_us: float
    median_us: float
    share: float
    repeats_us: tuple[float, ...] = ()
    calls: tuple[CallCost, ...] = ()
    allocated_bytes: float | None = None
    device_us: float | None = None
    busy_us: float | None = None
    idle_us: Mapping[str, float] = field(default_factory=dict)
    delay_us: float = 0.0
    bound_by: str = ""
    evidence: str = ""
    kernels: float | None = None
    launch_bound: bool = False
    syncs: tuple[Sync, ...] = ()
    operators: tuple[OperatorCost, ...] | None = None
    marginals: dict[int, StageSaving] = field(default_factory=dict)
    numbers: tuple[int, ...] = ()

    def number(self, index: int) -> int:
        """Return the displayed number of a stage."""
        return self.numbers[index] if index < len(self.numbers) else index

    @property
    def label(self) -> str:
        """Label of the row, such as ``2 CatFrames`` or ``env Pendulum-v1``."""
        if self.work == "stage":
            first, last = self.number(self.index), self.number(max(self.upto, self.index))
            return f"{first}-{last} {self.name}" if self.upto >= 0 else f"{first} {self.name}"
        return f"{self.work} {self.name}" if self.work in ("env", "policy") else self.name


@dataclass(frozen=True, slots=True)
class ModeCosts:
    """Measurement of one execution mode.

    Args:
        mode: Name of the mode.
        rows: All parts, the most expensive first.
        step_us: Mean time of a step.
        repeats_us: Mean time of a step in each repeat.
        frames_per_second: Frames per second.
        steps: Total number of steps.
        noise: Relative spread of the repeats.
        judgement: ``quiet``, ``fair``, ``noisy`` or ``unknown``.
        noise_text: Description of the noise.
        preemption: How much of the time other programs had the processor. ``None``: hardly any.
        notes: Remarks.
        device: What the accelerator is, and what it does in a step, each a sentence.
        error: Why the measurement ended early. ``None``: it did not.
    """

    mode: str
    rows: tuple[CostRow, ...]
    step_us: float
    repeats_us: tuple[float, ...]
    frames_per_second: float
    steps: int
    noise: float
    judgement: str
    noise_text: str
    preemption: str | None = None
    notes: tuple[str, ...] = ()
    device: tuple[str, ...] = ()
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Costs:
    """Measurement of a pipeline.

    Args:
        modes: Results of each mode.
        num_envs: Number of envs in a step.
        device: Device of the tensors.
        machine: Short description of the machine.
    """

    modes: tuple[ModeCosts, ...]
    num_envs: int
    device: str
    machine: str

    def mode(self, name: str) -> ModeCosts | None:
        """Return the result of a mode."""
        return next((mode for mode in self.modes if mode.mode == name), None)

    @property
    def error(self) -> str | None:
        """Why the measurement ended early, if it did."""
        return next((mode.error for mode in self.modes if mode.error is not None), None)


@dataclass(frozen=True, slots=True)
class Measurement:
    """What to measure.

    Args:
        pipeline: Pipeline to measure.
        modes: Modes to measure, one after the other.
        steps: Steps of each repeat.
        repeats: Number of repeats.
        warmup: Steps that do not count.
        extras: What to measure apart from time.
        allow_code: Allow the pipeline to import Python objects.
        samples: File or folder with the samples of a stack without an env.
    """

    pipeline: Pipeline
    modes: tuple[ModeName, ...]
    steps: int
    repeats: int
    warmup: int
    extras: frozenset[Extra] = frozenset()
    allow_code: bool = False
    samples: str | None = None


@dataclass(frozen=True, slots=True)
class MeasuredChange:
    """A change that was measured next to the current chain.

    Args:
        change: What was changed.
        found: Why it may help.
        before_us: Time of a step without the change.
        saved_us: Saved time per step.
        noise_us: Uncertainty of the saved time.
        values: Whether the values are the ``same``, ``close`` or ``other``.
        pipeline: Changed chain. ``None``: the change is not an edit of the chain.
    """

    change: str
    found: str
    before_us: float
    saved_us: float
    noise_us: float
    values: str
    pipeline: Pipeline | None


@dataclass(frozen=True, slots=True)
class AdviceResult:
    """All changes that were tried.

    Args:
        mode: Mode that was measured.
        refused: Why other changes could not be tried.
        error: Why the measurement ended early. ``None``: it did not.
        effective: Changes that save time, the best first.
        ineffective: Changes that save nothing beyond the noise.
    """

    mode: str
    effective: tuple[MeasuredChange, ...] = ()
    ineffective: tuple[MeasuredChange, ...] = ()
    refused: tuple[str, ...] = ()
    error: str | None = None


@dataclass(frozen=True, slots=True)
class AdviceSearch:
    """Which pipeline to make faster."""

    pipeline: Pipeline
    mode: ModeName
    steps: int
    repeats: int
    warmup: int
    allow_code: bool = False

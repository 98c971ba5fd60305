"""Requests of the Profile tab and messages of its worker: plain data that needs no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from tdx.pipeline.model import Pipeline
from tdx.profiling.plain import OperatorUse, RolloutMode

PROGRESS = "progress"
PARTIAL = "partly"
Extra = Literal["memory", "operators", "marginal"]
EXTRAS: tuple[Extra, ...] = ("memory", "operators", "marginal")
BINS = 32


@dataclass(frozen=True, slots=True)
class ProfileProgress:
    """What is being measured, and how much is done."""

    doing: str
    done: int
    of: int


@dataclass(frozen=True, slots=True)
class Sync:
    """A place where the host waits for the accelerator."""

    where: str  # ``file:line``; empty: unknown
    calls: float  # calls per step
    call: str = ""  # function that waits; empty: unknown
    time_us: float | None = None  # time of the waits per step; ``None``: not measured


@dataclass(frozen=True, slots=True)
class StageSaving:
    """Time that a step saves without a stage."""

    name: str  # class name of the stage
    saved_us: float | None  # saved time; ``None``: unknown
    noise_us: float = 0.0  # uncertainty of the saved time
    needed: str | None = None  # why the chain needs the stage; ``None``: it does not


@dataclass(frozen=True, slots=True)
class CallCost:
    """Calls of a part in one direction, in µs per call."""

    name: str  # direction: forward, inverse, reset, step; or a task of tdx itself
    n: int
    figures: dict[str, float]  # ``p50``, ``p95``, ``p99`` and ``max``
    step_us: float  # time per step
    # Steps for each call: the length of a chunk, or 1 for a part that runs in every step
    steps_per_call: float
    counts: tuple[int, ...]  # number of calls in each bin of the histogram
    low_us: float  # start of the first bin
    high_us: float  # end of the last bin, which includes all larger values


@dataclass(frozen=True, slots=True)
class CostRow:
    """Cost of a part of a rollout, all calls together, in µs per step."""

    work: str
    index: int  # index of the stage in the pipeline; -1 if the part is not a stage
    upto: int  # index of the last stage of a fused group; -1 if there is none
    name: str  # class name of the stage, or a description
    step_us: float  # time in the mean step
    median_us: float  # time of a step in which each call takes its median time
    share: float  # share of the total time, from 0 to 1
    repeats_us: tuple[float, ...] = ()  # time in the mean step of each repeat
    calls: tuple[CallCost, ...] = ()  # its calls, the most expensive first
    allocated_bytes: float | None = None  # bytes allocated per step; ``None``: not measured
    # Time between events on the accelerator per step; ``None``: there is none.
    device_us: float | None = None
    # Time in which the accelerator works for it, per step; ``None``: not measured.
    busy_us: float | None = None
    # Time in which the accelerator is idle before its work, per step, by cause
    idle_us: Mapping[str, float] = field(default_factory=dict)
    delay_us: float = 0.0  # mean time from a launch to the start of its kernel
    bound_by: str = ""  # what takes most of its time; empty: not measured
    evidence: str = ""  # figures that this follows from
    kernels: float | None = None  # kernels per step
    launch_bound: bool = False  # true if the accelerator waits for the host
    syncs: tuple[Sync, ...] = ()  # places where the host waits for the accelerator
    # Operators of torch, the most expensive first; ``None``: not measured.
    operators: tuple[OperatorUse, ...] | None = None
    # Savings by index of the stage; empty: not measured
    marginals: dict[int, StageSaving] = field(default_factory=dict)
    numbers: tuple[int, ...] = ()  # number of each stage in the chain pane; empty: its index

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
    """Measurement of one execution mode."""

    mode: str
    rows: tuple[CostRow, ...]  # all parts, the most expensive first
    step_us: float  # mean time of a step
    repeats_us: tuple[float, ...]  # mean time of a step in each repeat
    frames_per_second: float
    steps: int  # total number of steps
    noise: float  # relative spread of the repeats
    judgement: str  # ``quiet``, ``fair``, ``noisy`` or ``unknown``
    noise_text: str  # description of the noise
    # How much of the time other programs had the processor; ``None``: hardly any.
    preemption: str | None = None
    notes: tuple[str, ...] = ()
    # What the accelerator is, and what it does in a step, each a sentence
    device: tuple[str, ...] = ()
    error: str | None = None  # why the measurement ended early; ``None``: it did not


@dataclass(frozen=True, slots=True)
class Costs:
    """Measurement of a pipeline."""

    modes: tuple[ModeCosts, ...] = ()

    def mode(self, name: str) -> ModeCosts | None:
        """Return the result of a mode."""
        return next((mode for mode in self.modes if mode.mode == name), None)

    @property
    def error(self) -> str | None:
        """Why the measurement ended early, if it did."""
        return next((mode.error for mode in self.modes if mode.error is not None), None)


@dataclass(frozen=True, slots=True)
class Measurement:
    """What to measure; one mode and no extras for a search for advice."""

    pipeline: Pipeline
    modes: tuple[RolloutMode, ...]
    steps: int
    repeats: int
    warmup: int  # steps that do not count
    extras: frozenset[Extra] = frozenset()  # what to measure apart from time
    allow_code: bool = False
    samples: str | None = None  # file or folder with the samples of a stack without an env


@dataclass(frozen=True, slots=True)
class MeasuredChange:
    """A change that was measured next to the current chain."""

    change: str
    found: str  # why it may help
    before_us: float  # time of a step without the change
    saved_us: float  # saved time per step
    noise_us: float  # uncertainty of the saved time
    values: str  # whether the values are the ``same``, ``close`` or ``other``
    pipeline: Pipeline | None  # changed chain; ``None``: the change is not an edit of the chain


@dataclass(frozen=True, slots=True)
class AdviceResult:
    """All changes that were tried."""

    effective: tuple[MeasuredChange, ...] = ()  # changes that save time, the best first
    ineffective: tuple[MeasuredChange, ...] = ()  # changes that save nothing beyond the noise
    refused: tuple[str, ...] = ()  # why other changes could not be tried
    error: str | None = None  # why the measurement ended early; ``None``: it did not

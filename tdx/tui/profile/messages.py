"""Messages between the Profile tab and its worker: plain data that needs no torch."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

from tdx.pipeline.model import Pipeline
from tdx.tui.backend.messages import Request

PROGRESS = "progress"
PARTIAL = "partly"
ModeName = Literal["eager", "planned", "compiled"]
Extra = Literal["memory", "operators", "marginal"]
EXTRAS: tuple[Extra, ...] = ("memory", "operators", "marginal")
MODES: tuple[ModeName, ...] = ("eager", "planned", "compiled")
BINS = 32


@dataclass(frozen=True, slots=True)
class ProfileProgress:
    """What is being measured, and how much of it is done."""

    doing: str
    done: int
    of: int


@dataclass(frozen=True, slots=True)
class OperatorCost:
    """One of torch's operators in a part.

    Args:
        name: ``aten::add``.
        calls: how often in a step.
        time_us: its own time in a step, as the pass for operators saw it.
    """

    name: str
    calls: float
    time_us: float


@dataclass(frozen=True, slots=True)
class Sync:
    """A place where the host waits for the accelerator.

    Args:
        where: ``file:line``.
        calls: how often in a step.
    """

    where: str
    calls: float


@dataclass(frozen=True, slots=True)
class StageSaving:
    """What a step takes less without a stage.

    Args:
        name: class name of the stage.
        saved_us: how much; none where that is not known.
        noise_us: how far that may be off.
        needed: why the chain cannot do without it; none where it can.
    """

    name: str
    saved_us: float | None
    noise_us: float = 0.0
    needed: str | None = None


@dataclass(frozen=True, slots=True)
class CostRow:
    """What one part of a rollout costs, in µs.

    Args:
        work: what kind of part it is.
        index: a stage's place in the pipeline; -1 for what is none.
        upto: the last stage's place where neighbors have become one function; -1 otherwise.
        name: class name of a stage; what is done, otherwise.
        lane: which of its calls.
        n: how many were timed.
        figures: ``mean``, ``p50``, ``p90``, ``p95``, ``p99`` and ``max`` of a call.
        step_us: of the mean step.
        share: of all the time, from 0 to 1.
        per_step: whether a call stands for many steps, so that the figures are of a step.
        counts: how many calls are in each bin of the histogram.
        error_us: how far ``step_us`` may be off, for the number of calls alone.
        low_us: where its first bin begins.
        high_us: where its last one ends, with all that is above.
        allocated_bytes: what a step allocates; none where that was not measured.
        device_us: on the accelerator, in a step; none without one.
        kernels: how many kernels run there in a step.
        launch_bound: whether the accelerator waits for the host.
        syncs: where the host waits for it.
        operators: torch's, the dearest first; none where they were not looked at.
        marginals: by index of the stages in it; nothing where that was not measured.
        numbers: Number of each stage of the pipeline in the chain pane; empty: its index.
    """

    work: str
    index: int
    upto: int
    name: str
    lane: str
    n: int
    figures: dict[str, float]
    step_us: float
    share: float
    per_step: bool
    counts: tuple[int, ...]
    low_us: float
    high_us: float
    error_us: float = 0.0
    allocated_bytes: float | None = None
    device_us: float | None = None
    kernels: float | None = None
    launch_bound: bool = False
    syncs: tuple[Sync, ...] = ()
    operators: tuple[OperatorCost, ...] | None = None
    marginals: dict[int, StageSaving] = field(default_factory=dict)
    numbers: tuple[int, ...] = ()

    def covers(self, index: int) -> bool:
        """Whether a stage is in it."""
        return self.work == "stage" and self.index <= index <= max(self.upto, self.index)

    def number(self, index: int) -> int:
        """The number that is shown for a stage of the pipeline."""
        return self.numbers[index] if index < len(self.numbers) else index

    @property
    def label(self) -> str:
        """What a person reads: ``2 CatFrames``, ``env Pendulum-v1``."""
        if self.work == "stage":
            first, last = self.number(self.index), self.number(max(self.upto, self.index))
            return f"{first}-{last} {self.name}" if self.upto >= 0 else f"{first} {self.name}"
        return self.name if self.work == "engine" else f"{self.work} {self.name}"


@dataclass(frozen=True, slots=True)
class ModeCosts:
    """One way of running the rollout, measured.

    Args:
        mode: which.
        rows: every part, in the order of the chain.
        step_us: the mean time of a step.
        frames_per_second: how many frames come out in a second.
        steps: made in all repeats.
        noise: how far the repeats are apart, as a share.
        judgement: ``quiet``, ``fair``, ``noisy`` or ``unknown``.
        noise_text: the same for a person.
        notes: what one must know.
        error: why it ended early; none where it did not.
    """

    mode: str
    rows: tuple[CostRow, ...]
    step_us: float
    frames_per_second: float
    steps: int
    noise: float
    judgement: str
    noise_text: str
    notes: tuple[str, ...] = ()
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Costs:
    """A pipeline, measured in one mode or in several.

    Args:
        modes: each way of running it.
        num_envs: how many envs make up a step.
        device: where the tensors are.
        machine: on what it was measured, in short.
    """

    modes: tuple[ModeCosts, ...]
    num_envs: int
    device: str
    machine: str

    def numbered(self, numbers: tuple[int, ...]) -> Costs:
        """These costs with the numbers that stages have in the chain pane.

        Args:
            numbers: Number of each stage of the pipeline.
        """
        modes = tuple(
            replace(mode, rows=tuple(replace(row, numbers=numbers) for row in mode.rows))
            for mode in self.modes
        )
        return replace(self, modes=modes)

    def mode(self, name: str) -> ModeCosts | None:
        """What was measured in a mode."""
        return next((each for each in self.modes if each.mode == name), None)

    @property
    def error(self) -> str | None:
        """Why it ended early, if it did."""
        return next((each.error for each in self.modes if each.error is not None), None)


@dataclass(frozen=True, slots=True)
class MeasurePipeline(Request[Costs]):
    """Measure a pipeline; pushes :class:`Progress`, and the :class:`Costs` of each mode done.

    Args:
        pipeline: what is measured.
        modes: in which ways it runs, one after the other.
        steps: of each repeat.
        repeats: how often.
        warmup: steps that are not counted.
        extras: what is measured besides time.
        allow_code: whether Python objects that it names may be imported.
    """

    pipeline: Pipeline
    modes: tuple[ModeName, ...]
    steps: int
    repeats: int
    warmup: int
    extras: frozenset[Extra] = frozenset()
    allow_code: bool = False


@dataclass(frozen=True, slots=True)
class TriedChange:
    """A change of the chain that was tried, side by side with the chain as it is.

    Args:
        change: what was done.
        found: why.
        before_us: a step before it.
        saved_us: what it takes less.
        noise_us: how far that may be off.
        values: whether the ``same`` values come out, ``close`` ones, or ``other`` ones.
        pipeline: the chain with the change; none where the change is none of the chain.
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
    """All that was tried.

    Args:
        mode: how the chain ran.
        worth: what saved time, the most first.
        vain: what saved nothing beyond the noise.
        refused: what could not be tried, each a sentence.
        error: why it ended early; none where it did not.
    """

    mode: str
    effective: tuple[TriedChange, ...] = ()
    ineffective: tuple[TriedChange, ...] = ()
    refused: tuple[str, ...] = ()
    error: str | None = None


@dataclass(frozen=True, slots=True)
class FindAdvice(Request[AdviceResult]):
    """Try what may make a pipeline cheaper; pushes :class:`Progress`.

    Args:
        pipeline: what is to become cheaper.
        mode: in which way it runs.
        steps: of each repeat.
        repeats: how often.
        warmup: steps that are not counted.
        allow_code: whether Python objects that it names may be imported.
    """

    pipeline: Pipeline
    mode: ModeName
    steps: int
    repeats: int
    warmup: int
    allow_code: bool = False

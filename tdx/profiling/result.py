"""Results of a profile: timings, memory, operators and device work of each part."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

import numpy as np
import numpy.typing as npt

from tdx.core.meter import UNATTRIBUTED, Lane, Part
from tdx.errors import ArgumentError
from tdx.profiling.machine import Machine

Numbers = npt.NDArray[np.float64]
Counts = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Statistics:
    """Times in µs of one call each, or of one step each where a call stands for many.

    Args:
        n: how many calls were timed.
        mean: the mean.
        p50: the median.
        p90: nine in ten are at most this.
        p95: the same for 95 %.
        p99: the same for 99 %.
        max: the largest.
        iqr: from the first to the third quartile.
    """

    n: int
    mean: float
    p50: float
    p90: float
    p95: float
    p99: float
    max: float
    iqr: float


def compute_statistics(times: Numbers, weights: Counts | None = None) -> Statistics:
    """Statistics of times ``[n]``.

    Args:
        times: in µs.
        weights: how often each counts, ``[n]``; once by default.

    Raises:
        ArgumentError: there is none.

    Example:
        >>> import numpy as np
        >>> compute_statistics(np.array([1.0, 2.0, 9.0])).p50
        2.0
    """
    if not len(times):
        raise ArgumentError("no call was timed", hint="make more steps")
    quartiles = compute_percentiles(times, (25, 50, 75, 90, 95, 99), weights)
    low, p50, high, p90, p95, p99 = quartiles
    mean = float(np.average(times, weights=weights))
    return Statistics(len(times), mean, p50, p90, p95, p99, float(times.max()), high - low)


def compute_percentiles(
    times: Numbers, wanted: tuple[float, ...], weights: Counts | None = None
) -> list[float]:
    """The smallest times that so many per cent of all are at most, each in 0 to 100.

    Args:
        times: ``[n]``.
        wanted: which percentiles.
        weights: how often each time counts, ``[n]``; once by default.
    """
    order = np.argsort(times, kind="stable")
    counted = np.ones(len(times), np.int64) if weights is None else weights[order]
    reached = np.cumsum(counted)
    places = np.searchsorted(reached, np.array(wanted) / 100 * reached[-1], side="left")
    return [float(each) for each in times[order][np.minimum(places, len(times) - 1)]]


NoiseLevel = Literal["unknown", "quiet", "fair", "noisy"]
MAX_QUIET, MAX_FAIR = 0.03, 0.10


@dataclass(frozen=True, slots=True)
class Noise:
    """How far the repeats of a measurement are apart.

    Args:
        spread: half the distance between the fastest and the slowest repeat, by their median.
        judgement: ``quiet`` below 3 %, ``fair`` below 10 %, ``noisy`` above, ``unknown`` for a
            single repeat.
    """

    spread: float
    judgement: NoiseLevel

    @property
    def message(self) -> str:
        """What a person should know of it."""
        if self.judgement == "unknown":
            return "one repeat says nothing of the noise; use more"
        told = f"the repeats are within ±{self.spread:.1%} of each other"
        if self.judgement == "noisy":
            return f"{told}: close other programs, or measure longer"
        return told


def compute_noise(per_repeat: list[float]) -> Noise:
    """The noise between the repeats of a measurement.

    Args:
        per_repeat: the time of a step in each.

    Example:
        >>> compute_noise([10.0, 10.2, 10.1]).judgement
        'quiet'
    """
    if len(per_repeat) < 2:
        return Noise(0.0, "unknown")
    middle = float(np.median(per_repeat))
    spread = (max(per_repeat) - min(per_repeat)) / 2 / middle if middle else 0.0
    quiet: NoiseLevel = "quiet" if spread < MAX_QUIET else "fair" if spread < MAX_FAIR else "noisy"
    return Noise(spread, quiet)


Mode = Literal["eager", "planned", "compiled", "observed"]
MODES: tuple[Mode, ...] = ("eager", "planned", "compiled")
"""Those that can be asked for; ``observed`` is what a block of the caller's own code did."""


@dataclass(frozen=True, slots=True)
class Settings:
    """How it was measured.

    Args:
        steps: steps of the rollout in each repeat.
        warmup: steps before the first one, which are not counted.
        repeats: how often the rollout was made.
        policy: what gave the actions.
        device: where the env's tensors were.
        num_envs: how many envs make up a step.
        seed: of the env and the actions; ``None`` for none.
        sync: whether the host waited for the accelerator around each part.
    """

    steps: int
    warmup: int
    repeats: int
    policy: str
    device: str
    num_envs: int
    seed: int | None = None
    sync: bool = False


@dataclass(frozen=True)
class Row:
    """What one part of the rollout took.

    Args:
        part: whose calls.
        times_ns: each call's own time, without the other parts inside it, int64 ``[n]``.
        starts_ns: when each began, from the beginning of its repeat, int64 ``[n]``.
        spans_ns: each call's time with all that is inside it, int64 ``[n]``.
        steps: how many steps each call stands for, int64 ``[n]``.
        repeats: in which repeat each was, int64 ``[n]``.
    """

    part: Part
    times_ns: Counts
    starts_ns: Counts
    spans_ns: Counts
    steps: Counts
    repeats: Counts

    @property
    def key(self) -> tuple[str, Lane]:
        """What names the row in a table and in a baseline."""
        return self.part.label, self.part.lane

    @property
    def total_ns(self) -> int:
        """All of its own time."""
        return int(self.times_ns.sum())

    @property
    def covers_many(self) -> bool:
        """Whether its calls stand for many steps each, so that its times are those of a step."""
        return bool((self.steps > 1).any())

    @cached_property
    def samples_us(self) -> Numbers:
        """Time of a call; of a step where a call stands for many, float64 ``[n]``."""
        return self.times_ns / self.steps / 1000

    @cached_property
    def statistics(self) -> Statistics:
        """Mean, percentiles and so on of :attr:`samples_us`."""
        return compute_statistics(self.samples_us, self.steps if self.covers_many else None)


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """Memory of one part on the host: torch's tensors, and what is none of them.

    What a part allocates and keeps is without the parts inside it; its peak is with them.

    Args:
        allocated_bytes: what torch allocates in a step's calls, in bytes a step.
        peak_bytes: the most above what was there when a call began.
        kept_bytes: what its calls leave allocated, in bytes a step; negative where they free.
        objects_peak_bytes: the same as the peak for NumPy's arrays and Python's objects.
        objects_kept_bytes: the same as what is kept for these.
    """

    allocated_bytes: float
    peak_bytes: int
    kept_bytes: float
    objects_peak_bytes: int = 0
    objects_kept_bytes: float = 0.0


@dataclass(frozen=True, slots=True)
class OperatorUse:
    """One torch operator in one part.

    Args:
        name: ``aten::add``.
        calls: how often in a step.
        time_us: its own time in a step, as the operator pass saw it, which slows all down.
    """

    name: str
    calls: float
    time_us: float


@dataclass(frozen=True, slots=True)
class DeviceUse:
    """What one part does on an accelerator, in a step.

    Args:
        time_us: between its events on the device, without the parts inside it.
        kernels: how many kernels run.
        kernel_us: how long these run in sum.
        launches: how many are launched from the host.
        to_device_bytes: copied from the host.
        to_host_bytes: copied to the host.
        syncs: where the host waits for the device, by ``file:line``, with how often in a step.
        launch_bound: whether the device waits for the host rather than works.
        copy_us: how long copies on it, from it and to it run in sum.
        allocated_bytes: what is allocated on it, without the parts inside.
        peak_bytes: the most above what was there when a call began.
        kept_bytes: what its calls leave allocated; negative where they free.
    """

    time_us: float
    kernels: float = 0.0
    kernel_us: float = 0.0
    launches: float = 0.0
    to_device_bytes: float = 0.0
    to_host_bytes: float = 0.0
    syncs: dict[str, float] = field(default_factory=dict)
    launch_bound: bool = False
    copy_us: float = 0.0
    allocated_bytes: float = 0.0
    peak_bytes: int = 0
    kept_bytes: float = 0.0


@dataclass(frozen=True)
class ModeProfile:
    """One way of running the rollout, measured.

    Args:
        mode: which.
        rows: the parts, in the order of the chain.
        total_ns: the time of each repeat, int64 ``[repeats]``.
        steps: the steps made in each, int64 ``[repeats]``.
        frames: rows of the env times the steps that each is, in each repeat.
        specs_ns: what it took to compute the specs of the whole chain anew, each time.
        memory: by row key; empty where that pass was not made.
        operators: by row key, the dearest first; empty where that pass was not made.
        on_device: by row key; empty without an accelerator.
        notes: what a reader must know, each a sentence.
        error: why it ended early, if it did; the rows hold what was measured until then.
    """

    mode: Mode
    rows: tuple[Row, ...]
    total_ns: Counts
    steps: Counts
    frames: Counts
    specs_ns: Counts = field(default_factory=lambda: np.zeros(0, np.int64))
    memory: dict[tuple[str, Lane], MemoryUse] = field(default_factory=dict)
    operators: dict[tuple[str, Lane], tuple[OperatorUse, ...]] = field(default_factory=dict)
    on_device: dict[tuple[str, Lane], DeviceUse] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    error: str | None = None

    @property
    def step_us(self) -> float:
        """The mean time of a step; 0 where none was made."""
        steps = int(self.steps.sum())
        return float(self.total_ns.sum()) / steps / 1000 if steps else 0.0

    @property
    def frames_per_second(self) -> float:
        """How many frames come out in a second; 0 where none was made."""
        total = int(self.total_ns.sum())
        return float(self.frames.sum()) / total * 1e9 if total else 0.0

    @property
    def noise(self) -> Noise:
        """How far the repeats are apart."""
        made = self.steps > 0
        return compute_noise((self.total_ns[made] / self.steps[made]).tolist())

    def share(self, row: Row) -> float:
        """How much of all the time a row took, from 0 to 1."""
        total = int(self.total_ns.sum())
        return row.total_ns / total if total else 0.0

    def step_share_us(self, row: Row) -> float:
        """How much of the mean step a row takes, in µs."""
        steps = int(self.steps.sum())
        return row.total_ns / steps / 1000 if steps else 0.0

    @property
    def unattributed(self) -> float:
        """The share of the time that no part accounts for, from 0 to 1."""
        known = sum(row.total_ns for row in self.rows if row.part.name != UNATTRIBUTED)
        total = int(self.total_ns.sum())
        return 1 - known / total if total else 0.0


@dataclass(frozen=True)
class Profile:
    """A pipeline or an env, measured.

    Args:
        subject: the pipeline as one ``tdx`` line, or the env's name.
        stages: the class names of the chain.
        settings: how it was measured.
        machine: on what.
        modes: each way of running it.
    """

    subject: str
    stages: tuple[str, ...]
    settings: Settings
    machine: Machine
    modes: tuple[ModeProfile, ...]

"""Results of a profile: timings, memory, operators and device work of each part."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar, Literal

import numpy as np
import numpy.typing as npt

from tdx.core.meter import UNATTRIBUTED, Lane, Part
from tdx.foundation.errors import ArgumentError
from tdx.foundation.html_repr import repr_html
from tdx.foundation.nvml import GpuState
from tdx.foundation.serialization import Entries, Entry, Result, rounded
from tdx.profiling.machine import Machine
from tdx.profiling.plain import OperatorUse
from tdx.profiling.processor import ProcessorUse, describe_preemption

FloatArray = npt.NDArray[np.float64]
Counts = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Statistics:
    """Statistics of times of calls, in µs."""

    n: int
    mean: float
    p50: float
    p90: float
    p95: float
    p99: float
    max: float
    iqr: float


def histogram(samples: FloatArray, bins: int) -> tuple[list[int], list[float]]:
    """Count samples in bins; the last bin includes all samples above p99.

    The samples are in µs, float64 ``[n]``; the edges are one more than the counts.
    """
    low, high = float(samples.min()), float(np.quantile(samples, 0.99, method="higher"))
    edges = np.linspace(low, high if high > low else low + 1e-3, bins + 1)
    counts, _ = np.histogram(np.minimum(samples, edges[-1]), edges)
    return counts.tolist(), edges.tolist()


def compute_statistics(times: FloatArray) -> Statistics:
    """Compute statistics of times ``[n]``; ArgumentError if there are none."""
    if not len(times):
        raise ArgumentError("no call was timed", hint="run more steps")
    # The smallest times that at least these percentages of all times do not exceed.
    low, p50, high, p90, p95, p99 = np.percentile(
        times, (25, 50, 75, 90, 95, 99), method="inverted_cdf"
    ).tolist()
    mean = float(times.mean())
    return Statistics(len(times), mean, p50, p90, p95, p99, float(times.max()), high - low)


NoiseLevel = Literal["unknown", "quiet", "fair", "noisy"]
MAX_QUIET, MAX_FAIR = 0.03, 0.10


@dataclass(frozen=True, slots=True)
class Noise(Result):
    """Spread between the repeats of a measurement.

    Args:
        spread: Half the range of the repeats, relative to their median.
        judgement: ``quiet`` below 3 %, ``fair`` below 10 %, ``noisy`` above, ``unknown`` for a
            single repeat.
    """

    json_entries: ClassVar[Entries] = (Entry("spread", convert=rounded), "judgement", "message")

    spread: float
    judgement: NoiseLevel

    @property
    def message(self) -> str:
        """Message for the user."""
        if self.judgement == "unknown":
            return "one repeat does not show the noise: use more repeats"
        text = f"the repeats are within ±{self.spread:.1%} of each other"
        if self.judgement == "noisy":
            return f"{text}: close other programs, or measure longer"
        return text


def compute_spread(values: Sequence[float]) -> float:
    """Return half the range of the repeats, relative to their median; 0 for one repeat."""
    middle = float(np.median(values))
    return (max(values) - min(values)) / 2 / middle if middle else 0.0


def compute_noise(per_repeat: list[float]) -> Noise:
    """Compute the noise between the repeats of a measurement."""
    if len(per_repeat) < 2:
        return Noise(0.0, "unknown")
    spread = compute_spread(per_repeat)
    quiet: NoiseLevel = "quiet" if spread < MAX_QUIET else "fair" if spread < MAX_FAIR else "noisy"
    return Noise(spread, quiet)


Mode = Literal["eager", "planned", "compiled", "observed"]
"""Modes that can be requested.

``observed`` is a block of the caller's own code; only profiles of older versions are ``compiled``.
"""


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of a measurement.

    Args:
        steps: Steps of the rollout in each repeat.
        warmup: Steps before the first repeat, not measured.
        repeats: Number of rollouts.
        policy: Name of the policy.
        device: Device of the env.
        num_envs: Number of envs in a step.
        seed: Seed of the env and the actions. ``None``: not seeded.
        sync: Whether the host waited for the accelerator around each part.
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
    """Times of one part of the rollout.

    Args:
        part: The part.
        times_ns: Own time of each call, without other parts inside it, int64 ``[n]``.
        starts_ns: Start of each call since the start of its repeat, int64 ``[n]``.
        spans_ns: Total time of each call, int64 ``[n]``.
        steps: Number of steps that each call covers, int64 ``[n]``.
        repeats: Repeat of each call, int64 ``[n]``.
    """

    part: Part
    times_ns: Counts
    starts_ns: Counts
    spans_ns: Counts
    steps: Counts
    repeats: Counts

    @property
    def key(self) -> tuple[str, Lane]:
        """Label and lane, which identify the row in a table and in a baseline."""
        return self.part.label, self.part.lane

    @property
    def total_ns(self) -> int:
        """Sum of its own times."""
        return int(self.times_ns.sum())

    @property
    def covered_steps(self) -> float:
        """Mean number of steps that one call runs: the length of a chunk, or 1."""
        return float(self.steps.mean())

    @cached_property
    def samples_us(self) -> FloatArray:
        """Time of each call, float64 ``[n]``; a call may run a chunk of many steps."""
        return self.times_ns / 1000

    @cached_property
    def statistics(self) -> Statistics:
        """Statistics of :attr:`samples_us`."""
        return compute_statistics(self.samples_us)


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """Host memory used by one part: torch's tensors, and other objects.

    Allocated and kept bytes exclude the parts inside it; peaks include them.

    Args:
        allocated_bytes: Bytes that torch allocates, per step.
        peak_bytes: Maximum above the level at the start of a call.
        kept_bytes: Bytes still allocated after the calls, per step; negative if they free memory.
        objects_peak_bytes: Peak of NumPy arrays and Python objects.
        objects_kept_bytes: Kept bytes of NumPy arrays and Python objects.
    """

    allocated_bytes: float
    peak_bytes: int
    kept_bytes: float
    objects_peak_bytes: int = 0
    objects_kept_bytes: float = 0.0


@dataclass(frozen=True, slots=True)
class DeviceWait:
    """Waits of the host for an accelerator in one function, caused by one line; per step.

    Args:
        call: Function of the driver or its runtime, such as ``cudaStreamSynchronize``.
        line: ``file:line`` that causes the wait. Empty: unknown.
        calls: Number of waits.
        time_us: Time on the host in the traced rollout.
    """

    call: str
    line: str
    calls: float
    time_us: float


Bound = Literal["kernels", "launches", "a wait", "the host"]


@dataclass(frozen=True, slots=True)
class DeviceUse:
    """Work of one part on an accelerator, per step.

    A part has three times that are never mixed: the time of its :class:`Row` on the host,
    ``time_us`` between events on the device, and ``busy_us`` in which the device works.

    Args:
        time_us: Time between its events on the device, without the parts inside it.
        kernels: Number of kernels.
        kernel_us: Total time of the kernels.
        launches: Number of launches from the host.
        to_device_bytes: Bytes copied from the host.
        to_host_bytes: Bytes copied to the host.
        syncs: Number of waits of the host for the device, by ``file:line``.
        launch_bound: Whether the device mostly waits for the host.
        copy_us: Total time of copies on the device and to and from it.
        allocated_bytes: Bytes allocated on it, without the parts inside.
        peak_bytes: Maximum above the level at the start of a call.
        kept_bytes: Bytes still allocated after the calls; negative if they free memory.
        busy_us: Time in which its kernels, copies or fills run, on any stream.
        main_stream_us: Time of its work on the stream with the most work, in which the events are.
        to_device_us: Total time of copies from the host.
        to_host_us: Total time of copies to the host.
        traced_us: Time on the host in the traced rollout, which the tracer slows down.
        launching_us: The part of it in operators that launch work.
        launch_delay_us: Mean time from the end of a launch to the start of its kernel.
        waits: Waits of the host, the longest first.
        idle_host_us: Time in which the device is idle because nothing was launched, while the host
            is in this part.
        idle_kernel_us: Idle time between consecutive kernels that were launched early enough.
        idle_other_us: Other idle time before its work, which waits for another stream or an event.
        synchronized_us: Time on the host if it waits for the device before and after each part.
            ``None``: not measured.
        bound_by: What takes most of its time. ``None``: not measured.
        evidence: Figures that ``bound_by`` follows from.
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
    busy_us: float = 0.0
    main_stream_us: float = 0.0
    to_device_us: float = 0.0
    to_host_us: float = 0.0
    traced_us: float = 0.0
    launching_us: float = 0.0
    launch_delay_us: float = 0.0
    waits: tuple[DeviceWait, ...] = ()
    idle_host_us: float = 0.0
    idle_kernel_us: float = 0.0
    idle_other_us: float = 0.0
    synchronized_us: float | None = None
    bound_by: Bound | None = None
    evidence: str = ""

    @property
    def wait_us(self) -> float:
        """Time in which the host waits for the device."""
        return sum(wait.time_us for wait in self.waits)

    @property
    def idle_us(self) -> float:
        """Idle time of the device for all causes."""
        return self.idle_host_us + self.idle_kernel_us + self.idle_other_us


@dataclass(frozen=True, slots=True)
class DeviceSummary:
    """An accelerator over a whole rollout; times per step.

    Args:
        name: Such as ``cuda:0``.
        asynchronous_us: Time of a step if the host waits only where the rollout does. ``None``: the
            profile was measured in sync mode.
        synchronized_us: Time of a step if the host waits around each part. ``None``: not measured.
        span_us: Time between the first and the last event, without the cost of the events.
        events_us: Cost of the events, which is subtracted from all spans.
        traced_us: Time of a step in the traced rollout, which ``busy_us`` and the idle times sum up
            to. ``None``: the device reports no work.
        busy_us: Time in which it works; work on several streams at a time counts once.
        unattributed_us: The part of it that no part of the rollout launched.
        idle_host_us: Idle because nothing was launched.
        idle_kernel_us: Idle between consecutive kernels.
        idle_other_us: Idle for other reasons.
        torch_bytes: Memory that torch's allocator holds at the end. ``None``: not reported.
        gpu: State that the driver reports after the measurement. ``None``: it does not.
    """

    name: str
    asynchronous_us: float | None = None
    synchronized_us: float | None = None
    span_us: float = 0.0
    events_us: float = 0.0
    traced_us: float | None = None
    busy_us: float = 0.0
    unattributed_us: float = 0.0
    idle_host_us: float = 0.0
    idle_kernel_us: float = 0.0
    idle_other_us: float = 0.0
    torch_bytes: int | None = None
    gpu: GpuState | None = None

    @property
    def unattributed(self) -> float:
        """Share of the work that no part of the rollout launched, from 0 to 1."""
        return self.unattributed_us / self.busy_us if self.busy_us else 0.0

    @property
    def message(self) -> str | None:
        """How much of a step it works; ``None`` if it does not report that."""
        if not self.traced_us:
            return None
        busy = f"busy for {self.busy_us / self.traced_us:.0%} of a traced step"
        return f"{busy}, {self.unattributed:.1%} of its work is unattributed"


@dataclass(frozen=True)
class ModeProfile:
    """Measurements of one mode of running a rollout.

    Args:
        mode: The mode.
        rows: Parts in the order of the chain.
        total_ns: Time of each repeat, int64 ``[repeats]``.
        steps: Steps of each repeat, int64 ``[repeats]``.
        frames: Steps times envs of each repeat.
        specs_ns: Time of each computation of the specs of the whole chain.
        memory: Memory by row key; empty without that pass.
        operators: Operators by row key, most expensive first; empty without that pass.
        on_device: Device work by row key; empty without an accelerator.
        device: The accelerator over the whole rollout. ``None``: there is none, or it was not
            measured.
        processor: Use of the processor in each repeat; empty if it was not read.
        notes: Notes for the reader, each a sentence.
        error: Why the measurement ended early. ``None``: it did not. Rows hold the measurements
            until then.
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
    device: DeviceSummary | None = None
    processor: tuple[ProcessorUse, ...] = ()
    notes: tuple[str, ...] = ()
    error: str | None = None

    @property
    def preemption(self) -> str | None:
        """How much of the time other programs had the processor; ``None`` if hardly any."""
        return describe_preemption(self.processor)

    @property
    def step_us(self) -> float:
        """Mean time of a step; 0 without steps."""
        steps = int(self.steps.sum())
        return float(self.total_ns.sum()) / steps / 1000 if steps else 0.0

    @property
    def frames_per_second(self) -> float:
        """Frames per second; 0 without steps."""
        total = int(self.total_ns.sum())
        return float(self.frames.sum()) / total * 1e9 if total else 0.0

    @property
    def noise(self) -> Noise:
        """Noise between the repeats."""
        return compute_noise(self.repeat_us)

    @property
    def repeat_us(self) -> list[float]:
        """Mean time of a step in each repeat, in µs."""
        is_complete = self.steps > 0
        found: list[float] = (self.total_ns[is_complete] / self.steps[is_complete] / 1000).tolist()
        return found

    def share(self, row: Row) -> float:
        """Return the share of the total time that a row takes, from 0 to 1."""
        total = int(self.total_ns.sum())
        return row.total_ns / total if total else 0.0

    def step_share_us(self, row: Row) -> float:
        """Return the time of a row in the mean step, in µs."""
        steps = int(self.steps.sum())
        return row.total_ns / steps / 1000 if steps else 0.0

    def steps_per_call(self, row: Row) -> float:
        """Return how many steps there are for each call: its mean time divided by it is per step.

        A part that runs once for a chunk, or only at a reset, has many; one that is called several
        times in a step has less than 1.
        """
        return int(self.steps.sum()) / len(row.times_ns)

    @property
    def unattributed(self) -> float:
        """Share of the time that no part accounts for, from 0 to 1."""
        known = sum(row.total_ns for row in self.rows if row.part.name != UNATTRIBUTED)
        total = int(self.total_ns.sum())
        return 1 - known / total if total else 0.0


@dataclass(frozen=True)
class Profile:
    """Profile of a pipeline or an env.

    Args:
        subject: The pipeline as a ``tdx`` command line, or the name of the env.
        stages: Class names of the chain.
        settings: Settings of the measurement.
        machine: Machine of the measurement.
        modes: Measurements of each mode.
    """

    _repr_html_ = repr_html

    subject: str
    stages: tuple[str, ...]
    settings: Settings
    machine: Machine
    modes: tuple[ModeProfile, ...]

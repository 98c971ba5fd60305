"""Measures a pipeline; runs in a worker of its own."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from typing import Any

import numpy as np

from tdx.envs import EnvBase
from tdx.pipeline import build_env
from tdx.profiling.machine import Machine
from tdx.profiling.passes.choice import PassName
from tdx.profiling.result import ModeProfile, Profile, Row
from tdx.profiling.run import ProfilePlan, profile_env
from tdx.profiling.statistics import Numbers
from tdx.rollouts.policies import check_length, check_policy, named_policy
from tdx.tui.backend.job import Job
from tdx.tui.profile.requests import BINS, PARTLY, PROGRESS, CostRow, Costs, Measure, ModeCosts
from tdx.tui.profile.requests import Progress as Told

_LOOK_EVERY = 0.1
_FIGURES = ("mean", "p50", "p90", "p95", "p99", "max")


def measure(request: Measure, job: Job) -> Costs:
    """Measure one mode after the other; what was measured until it is cancelled is there."""
    found: list[Costs] = []
    with suppress(KeyboardInterrupt), _interrupted_by(job):
        job.push(PROGRESS, Told("making the env", 0, 1))
        env = build_env(request.pipeline, request.allow_code)
        try:
            for mode in request.modes:
                plan = _plan(request, env, job)
                found.append(_costs(profile_env(env, [mode], plan)))
                job.push(PARTLY, _joined(found))
                if found[-1].error is not None:
                    break
        finally:
            env.close()
    return _joined(found)


def _plan(request: Measure, env: EnvBase, job: Job) -> ProfilePlan:
    longest = max(request.steps, request.warmup)
    name = request.pipeline.policy or "random"
    policy = named_policy(name, env, request.allow_code)
    check_policy(policy, env)
    check_length(policy, longest)
    passes: tuple[PassName, ...] = ("memory",) if request.memory else ()
    if env.device.type != "cpu":
        passes = (*passes, "device")
    return ProfilePlan(
        steps=request.steps,
        warmup=request.warmup,
        repeats=request.repeats,
        policy=policy.after(0),
        policy_name=name,
        seed=request.pipeline.env.seed,
        passes=passes,
        on_progress=lambda doing, done, of: job.push(PROGRESS, Told(doing, done, of)),
    )


@contextmanager
def _interrupted_by(job: Job) -> Iterator[None]:
    """Raise an interrupt in the main thread when the job is cancelled, wherever it is."""
    main = threading.main_thread()
    if threading.current_thread() is not main:
        yield
        return
    over = threading.Event()

    def wait() -> None:
        while not over.is_set():
            if job.wait(_LOOK_EVERY):
                if not over.is_set():
                    # To that thread itself, so that an env that sleeps wakes up.
                    signal.pthread_kill(main.ident or 0, signal.SIGINT)
                return

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    watcher = threading.Thread(target=wait, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        signal.signal(signal.SIGINT, before)


def _joined(found: list[Costs]) -> Costs:
    if not found:
        return Costs((), 1, "", "")
    modes = tuple(mode for each in found for mode in each.modes)
    return Costs(modes, found[0].num_envs, found[0].device, found[0].machine)


def _costs(profile: Profile) -> Costs:
    modes = tuple(_mode(mode) for mode in profile.modes)
    settings = profile.settings
    return Costs(modes, settings.num_envs, settings.device, _machine(profile.machine))


def _mode(mode: ModeProfile) -> ModeCosts:
    noise = mode.noise
    return ModeCosts(
        mode=mode.mode,
        rows=tuple(_row(mode, row) for row in mode.rows if len(row.times_ns)),
        step_us=mode.step_us,
        frames_per_second=mode.frames_per_second,
        steps=int(mode.steps.sum()),
        noise=noise.spread,
        judgement=noise.judgement,
        noise_text=noise.message,
        notes=tuple(mode.notes),
        error=mode.error,
    )


def _row(mode: ModeProfile, row: Row) -> CostRow:
    statistics = asdict(row.statistics)
    counts, low, high = _histogram(row.samples_us)
    memory, device = mode.memory.get(row.key), mode.on_device.get(row.key)
    more: dict[str, Any] = {}
    if device is not None:
        more["device_us"], more["kernels"] = device.time_us, device.kernels
        more["launch_bound"] = device.launch_bound
    return CostRow(
        work=row.part.work,
        index=row.part.index,
        upto=row.part.upto,
        name=row.part.name,
        lane=row.part.lane,
        n=int(statistics["n"]),
        figures={name: float(statistics[name]) for name in _FIGURES},
        step_us=mode.step_share_us(row),
        share=mode.share(row),
        per_step=row.covers_many,
        counts=counts,
        low_us=low,
        high_us=high,
        error_us=_error_us(mode, row),
        allocated_bytes=None if memory is None else memory.allocated_bytes,
        **more,
    )


def _error_us(mode: ModeProfile, row: Row) -> float:
    """Two standard errors of a row's part of the step, from how much its calls differ."""
    calls, steps = len(row.times_ns), int(mode.steps.sum())
    if calls < 2 or not steps:
        return mode.step_share_us(row)
    return float(2 * np.std(row.times_ns, ddof=1) * calls**0.5 / steps / 1000)


def _histogram(samples: Numbers) -> tuple[tuple[int, ...], float, float]:
    """Counts between the shortest time and the 99th percentile; the last bin has the rest too."""
    low, high = float(samples.min()), float(np.quantile(samples, 0.99, method="higher"))
    high = high if high > low else low + 1e-3
    bins = int(np.clip(2 * len(samples) ** 0.5, 4, BINS))
    counts, _ = np.histogram(np.minimum(samples, high), bins, (low, high))
    return tuple(counts.tolist()), low, high


def _machine(machine: Machine) -> str:
    parts = [machine.processor, f"{machine.cores} cores", *machine.accelerators]
    return ", ".join(part for part in parts if part)

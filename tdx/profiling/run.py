"""Profile rollouts of an env: one pass for time, others for memory, operators and devices."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tdx.core.chain import flatten_chain
from tdx.core.envs import EnvBase
from tdx.core.transformed_env import TransformedEnv
from tdx.foundation.errors import ArgumentError, TdxError
from tdx.foundation.files import atomic_path
from tdx.foundation.patches import Patches
from tdx.foundation.serialization import Result
from tdx.profiling.clock import CallTimes, Clock, ClockMeter, make_rows
from tdx.profiling.machine import detect_machine, quiet_environment
from tdx.profiling.passes.accelerator import NO_SYNC_NOTE, SYNC_NOTE, synchronized_clock
from tdx.profiling.passes.choice import (
    MAX_DEVICE_STEPS,
    MAX_HOST_STEPS,
    AcceleratorLookup,
    find_accelerator,
    make_observers,
)
from tdx.profiling.passes.device import WAITING_PART, TraceRecorder
from tdx.profiling.passes.observer import Observer
from tdx.profiling.plain import MODES, PASSES, PassName
from tdx.profiling.processor import ProcessorUse, processor_use, read_processor
from tdx.profiling.result import Mode, ModeProfile, Profile, Settings
from tdx.profiling.traces import count_calls
from tdx.stacks.native_times import ROLLOUT_PART, timed_env

OnProgress = Callable[[str, int, int], Any]
"""Callback: what is being measured, how much of it is done, and the total."""


@dataclass(frozen=True, slots=True)
class ProfilePlan:
    """Settings of a profile.

    Args:
        steps: Steps of the rollout in each repeat.
        warmup: Steps before the first repeat, not measured.
        repeats: Number of rollouts.
        policy: Policy, as in ``env.rollout``. ``None``: random actions.
        policy_name: Name of the policy.
        seed: Seed of the env and the actions. ``None``: not seeded.
        threads: Threads for torch operators. ``None``: unchanged.
        passes: Measurements other than time, each in its own rollouts.
        subject: Title of the profile. Empty: the name of the env.
        on_progress: Called with the progress.
        clock: Returns nanoseconds.
        all_wrappers: Include the thin Gymnasium wrappers that ``gymnasium.make`` adds if there are
            no others.
        record_trace: File for a trace of torch's profiler, of a rollout of its own. ``None``: none.
        sync: Wait for the accelerator before and after each part, so that the time of a part
            includes its work on the device; slower than a usual rollout.
    """

    steps: int = 1000
    warmup: int = 100
    repeats: int = 5
    policy: Any = None
    policy_name: str = "random"
    seed: int | None = None
    threads: int | None = None
    passes: tuple[PassName, ...] = PASSES
    subject: str = ""
    on_progress: OnProgress | None = None
    clock: Clock = time.perf_counter_ns
    all_wrappers: bool = False
    record_trace: Path | None = None
    sync: bool = False

    def __post_init__(self) -> None:
        for name, least in (("steps", 1), ("warmup", 0), ("repeats", 1)):
            if getattr(self, name) < least:
                raise ArgumentError(
                    f"{name} must be at least {least}, got {getattr(self, name)}",
                    hint=f"pass {least} or more",
                )

    def settings(self, device: str, num_envs: int) -> Settings:
        """Return what a profile tells about its measurement of an env."""
        measured = (self.steps, self.warmup, self.repeats, self.policy_name)
        return Settings(*measured, device, num_envs, self.seed, self.sync)

    def report_progress(self, doing: str, done: int, of: int) -> None:
        """Call ``on_progress``."""
        if self.on_progress is not None:
            self.on_progress(doing, done, of)


def profile_env(
    env: EnvBase, modes: Sequence[Mode] = ("planned",), plan: ProfilePlan | None = None
) -> Profile:
    """Measure rollouts of an env.

    The state of the env advances as in any rollout; its mode of execution is restored afterwards.
    An error of the env or a stage, or an interrupt, ends the measurement. The result then contains
    the measurements so far and the ``error``.

    Args:
        env: Env with its chain.
        modes: ``eager`` runs step by step, ``planned`` as rollouts run by default.
        plan: Settings. ``None``: defaults.

    Raises:
        ArgumentError: A mode is unknown.
        DeviceError: The env, its chain or its policy is on a device that does not exist.

    Example:
        >>> from tdx import GymEnv, RewardSum, TransformedEnv
        >>> env = TransformedEnv(GymEnv("Pendulum-v1"), RewardSum())
        >>> found = profile_env(env, ["eager"], ProfilePlan(steps=20, warmup=0, repeats=2))
        >>> [row.part.label for row in found.modes[0].rows][:3]
        ['policy random', 'env Pendulum-v1', 'env Pendulum-v1']
    """
    plan = plan or ProfilePlan()
    for mode in modes:
        if mode not in MODES:
            raise ArgumentError(
                f"mode must be one of {', '.join(MODES)}, got {mode!r}", hint=f"pass {MODES[0]!r}"
            )
    if plan.record_trace is not None and len(modes) != 1:
        raise ArgumentError("a trace is recorded in one mode", hint="leave out the other modes")
    base, stages = flatten_chain(env)
    device, found = find_accelerator(env, plan.policy), []
    for mode in modes:
        try:
            with rollout_mode(env, mode), quiet_environment(plan.threads):
                found.append(_Measurement(env, mode, plan, device).measure())
        except KeyboardInterrupt:
            if not found:
                raise
            found[-1] = replace(found[-1], error="interrupted")
        if found[-1].error is not None:
            break
    return Profile(
        subject=plan.subject or base.display_name,
        stages=tuple(type(stage).__name__ for stage in stages),
        settings=plan.settings(str(env.device), env.batch_size.numel()),
        machine=detect_machine(),
        modes=tuple(found),
    )


@contextmanager
def rollout_mode(env: EnvBase, mode: Mode) -> Iterator[None]:
    """Run the env's rollouts in a mode inside the block."""
    with Patches() as patches:
        level: EnvBase | None = env
        while level is not None:
            patches.put(level, "planned", mode != "eager")
            level = level.base_env if isinstance(level, TransformedEnv) else None
        yield


_REPEAT_PART = replace(ROLLOUT_PART, upto=0)
"""A whole repeat; a part's call cannot be inside another call of the same part."""


class _Measurement:
    def __init__(
        self, env: EnvBase, mode: Mode, plan: ProfilePlan, device: AcceleratorLookup
    ) -> None:
        self._env, self._mode, self._plan = env, mode, plan
        self._repeats: list[list[CallTimes]] = []
        self._began: list[int] = []
        self._totals: list[int] = []
        self._steps: list[int] = []
        self._specs: list[int] = []
        self._processor: list[ProcessorUse] = []
        self._error: str | None = None
        self._device = device

    def measure(self) -> ModeProfile:
        """Measure and return the results."""
        profile = self._measure_time()
        for name in self._plan.passes:
            for observer in make_observers(name, self._device.accelerator, self._plan.clock):
                if profile.error is None:
                    self._plan.report_progress(f"{self._mode}: {name}", 0, 1)
                    profile = self._run_observer(observer, name, profile)
        if self._plan.record_trace is not None and profile.error is None:
            self._plan.report_progress(f"{self._mode}: trace", 0, 1)
            with atomic_path(self._plan.record_trace) as path:
                recorder = TraceRecorder(path, self._device.accelerator)
                if (why := recorder.unavailable_reason()) is not None:
                    raise ArgumentError(f"no trace can be recorded: {why}")
                profile = self._run_observer(recorder, "device", profile)
        if profile.device is not None:
            step_us = profile.step_us
            device = replace(profile.device, asynchronous_us=step_us)
            if self._plan.sync:
                device = replace(profile.device, synchronized_us=step_us)
            profile = replace(profile, device=device)
        return profile

    def _measure_time(self) -> ModeProfile:
        plan = self._plan
        try:
            accelerator = self._device.accelerator if plan.sync else None
            meter = ClockMeter(synchronized_clock(plan.clock, accelerator))
            self._seed()
            for _ in range(3):
                level: EnvBase = self._env
                while isinstance(level, TransformedEnv):
                    level.env_specs.invalidate()
                    level = level.base_env
                start = plan.clock()
                _ = self._env.output_spec, self._env.input_spec
                self._specs.append(plan.clock() - start)
            with timed_env(self._env, meter, all_wrappers=plan.all_wrappers):
                if plan.warmup:
                    plan.report_progress(f"{self._mode}: warm-up", 0, plan.warmup)
                    sum(self._run_steps(plan.warmup))
                self._wait(meter)
                meter.collect()
                for repeat in range(plan.repeats):
                    plan.report_progress(f"{self._mode}: time", repeat, plan.repeats)
                    self._time_once(meter)
        except KeyboardInterrupt:
            self._error = "interrupted"
        except Exception as error:
            self._error = describe_error(error)
        steps = np.array(self._steps, np.int64)
        notes = self._device.notes
        if plan.sync:
            notes = (*notes, SYNC_NOTE if self._device.accelerator else NO_SYNC_NOTE)
        return ModeProfile(
            mode=self._mode,
            rows=make_rows(self._repeats, self._began),
            total_ns=np.array(self._totals, np.int64),
            steps=steps,
            frames=steps * max(self._env.batch_size.numel(), 1),
            specs_ns=np.array(self._specs, np.int64),
            processor=tuple(self._processor),
            notes=notes,
            error=self._error,
        )

    def _seed(self) -> None:
        if self._plan.seed is not None:
            torch.manual_seed(self._plan.seed)
            self._env.set_seed(self._plan.seed)

    def _time_once(self, meter: ClockMeter) -> None:
        steps_run = 0

        def repeat() -> None:
            nonlocal steps_run
            for chunk in self._run_steps(self._plan.steps):
                steps_run += chunk
            self._wait(meter)

        start = self._plan.clock()
        before = read_processor()
        try:
            meter.timed(_REPEAT_PART, repeat)()
        finally:
            self._processor.append(processor_use(before, read_processor()))
            taken = [
                replace(times, part=ROLLOUT_PART) if times.part == _REPEAT_PART else times
                for times in meter.collect()
            ]
            # All calls are inside that one call, so the rows add up to the total.
            self._totals.append(sum(int(times.own_ns.sum()) for times in taken))
            self._steps.append(steps_run)
            began = [int(times.start_ns.min()) for times in taken]
            self._began.append(min(began, default=start))
            self._repeats.append(taken)

    def _wait(self, meter: ClockMeter) -> None:
        if self._device.accelerator is not None:
            meter.timed(WAITING_PART, self._device.accelerator.synchronize)()

    def _run_steps(self, steps: int) -> Iterator[int]:
        """Run steps; yield the number of steps of each chunk."""
        for chunk in self._env.iter_rollout(steps, self._plan.policy):
            yield chunk.shape[-1]

    def _run_observer(
        self, observer: Observer, name: PassName, profile: ModeProfile
    ) -> ModeProfile:
        why = observer.unavailable_reason()
        if why is not None:
            return replace(profile, notes=(*profile.notes, why))
        plan, steps_run, error = self._plan, 0, None
        most = MAX_DEVICE_STEPS if name == "device" else MAX_HOST_STEPS
        steps = min(plan.steps, most)
        warmup = max(1, min(plan.warmup, steps))
        try:
            self._seed()
            with timed_env(self._env, observer, all_wrappers=self._plan.all_wrappers):
                # The set-up work of first calls is not part of a step.
                if not observer.records_warmup:
                    sum(self._run_steps(warmup))
                with observer.recording():
                    if observer.records_warmup:
                        sum(self._run_steps(warmup))
                        observer.discard()
                    for chunk in self._run_steps(steps):
                        steps_run += chunk
        except KeyboardInterrupt:
            error = "interrupted"
        except Exception as raised:
            error = describe_error(raised)
        found = observer.add_results(profile, steps_run) if steps_run else profile
        return replace(found, error=error)


def describe_error(error: Exception) -> str:
    """Return the message of an error with its type and notes."""
    if isinstance(error, TdxError):
        return str(error)
    notes = "; ".join(getattr(error, "__notes__", ()))
    return f"{type(error).__name__}: {error}" + (f" ({notes})" if notes else "")


_SHORT_STEPS, _SHORT_WARMUP = 50, 10
_PASS_SLOWDOWN = 3.0
"""Approximate slowdown of a step in a pass other than the clean one."""
_SAMPLE_BYTES = 8
"""Approximate size of the samples of a call in a file."""


@dataclass(frozen=True, slots=True)
class Estimate(Result):
    """Estimated duration of one mode.

    Args:
        mode: The mode.
        steps: Total steps of the clean pass, with warm-up.
        step_us: Time of a step in a short rollout.
        seconds: Duration of all passes.
        calls: Number of timed calls.
        saved_bytes: Size of the calls in a file.
    """

    mode: Mode
    steps: int
    step_us: float
    seconds: float
    calls: int
    saved_bytes: int


def shorten_plan(plan: ProfilePlan) -> ProfilePlan:
    """Return the plan with only as many steps as an estimate needs."""
    return replace(
        plan,
        steps=min(plan.steps, _SHORT_STEPS),
        warmup=min(plan.warmup, _SHORT_WARMUP),
        repeats=1,
        passes=(),
    )


def estimate_duration(short: Profile, plan: ProfilePlan) -> tuple[Estimate, ...]:
    """Estimate the duration of each mode from a profile measured with :func:`shorten_plan`."""
    found = []
    for mode in short.modes:
        steps = plan.warmup + plan.steps * plan.repeats
        slowed = min(plan.steps, MAX_HOST_STEPS) * _PASS_SLOWDOWN * len(plan.passes)
        steps_run = max(int(mode.steps.sum()), 1)
        calls = round(count_calls(mode) / steps_run * plan.steps * plan.repeats)
        found.append(
            Estimate(
                mode=mode.mode,
                steps=steps,
                step_us=mode.step_us,
                seconds=(steps + slowed) * mode.step_us / 1e6,
                calls=calls,
                saved_bytes=calls * _SAMPLE_BYTES,
            )
        )
    return tuple(found)

"""Profile rollouts of an env: one pass for time, others for memory, operators and devices."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from tdx.core.envs import EnvBase
from tdx.core.plan.forms import flattened
from tdx.core.transformed_env import TransformedEnv
from tdx.errors import ArgumentError, TdxError
from tdx.profiling.clock import CallTimes, Clock, ClockMeter, make_rows
from tdx.profiling.instrument import ROLLOUT_PART, AttributePatches, attach_meter
from tdx.profiling.machine import detect_machine, quiet_environment
from tdx.profiling.passes.accelerator import NO_SYNC_NOTE, SYNC_NOTE, synchronized_clock
from tdx.profiling.passes.choice import (
    MAX_HOST_STEPS,
    PASSES,
    AcceleratorLookup,
    PassName,
    find_accelerator,
    make_observers,
    max_recorded_steps,
)
from tdx.profiling.passes.device import WAITING_PART
from tdx.profiling.passes.observer import Observer
from tdx.profiling.result import MODES, Mode, ModeProfile, Profile, Settings
from tdx.profiling.traces import count_calls

OnProgress = Callable[[str, int, int], Any]
"""Told what is being measured, how much of it is done, and how much there is."""


@dataclass(frozen=True, slots=True)
class ProfilePlan:
    """What is to be measured of an env.

    Args:
        steps: steps of the rollout in each repeat.
        warmup: steps before the first one, which are not counted.
        repeats: how often the rollout is made.
        policy: gives the actions, as in ``env.rollout``; random by default.
        policy_name: what it is called.
        seed: of the env and the actions; none by default.
        threads: for torch's operators; as many as before by default.
        passes: what is measured beside time, each in rollouts of its own.
        subject: what is measured, in words; the env's name by default.
        on_progress: told how far it is.
        clock: gives nanoseconds.
        all_wrappers: whether the thin Gymnasium wrappers that ``gymnasium.make`` adds get rows
            where there are no others.
        sync: whether the host waits for the accelerator before and after each part, so that a
            part's time holds what the device does for it; slower, and another rollout than usual.
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
    sync: bool = False

    def __post_init__(self) -> None:
        for name, least in (("steps", 1), ("warmup", 0), ("repeats", 1)):
            if getattr(self, name) < least:
                raise ArgumentError(
                    f"{name} must be at least {least}, got {getattr(self, name)}",
                    hint=f"pass {least} or more",
                )

    def told(self, doing: str, done: int, of: int) -> None:
        """Pass on how far it is."""
        if self.on_progress is not None:
            self.on_progress(doing, done, of)


def profile_env(
    env: EnvBase, modes: Sequence[Mode] = ("planned",), plan: ProfilePlan | None = None
) -> Profile:
    """Measure rollouts of an env.

    What the env holds moves on as in any rollout; how it runs is as before afterwards. An error
    of the env or a stage, or an interrupt, ends the measurement, and what was measured until then
    is there, with its ``error``.

    Args:
        env: the env, with its chain.
        modes: ways of running it: ``eager`` step by step, ``planned`` as rollouts run by
            default, ``compiled`` with neighbouring stages compiled.
        plan: what is to be measured.

    Raises:
        ArgumentError: a mode is unknown.
        DeviceError: the env, its chain or its policy is on a device that is not there.

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
    base, stages = flattened(env)
    device, found = find_accelerator(env, plan.policy), []
    for mode in modes:
        try:
            with rollout_mode(env, mode), quiet_environment(plan.threads):
                found.append(_Measurement(env, mode, plan, device).made())
        except KeyboardInterrupt:
            if not found:
                raise
            found[-1] = replace(found[-1], error="interrupted")
        if found[-1].error is not None:
            break
    return Profile(
        subject=plan.subject or getattr(base, "_name", None) or type(base).__name__,
        stages=tuple(type(stage).__name__ for stage in stages),
        settings=Settings(
            plan.steps,
            plan.warmup,
            plan.repeats,
            plan.policy_name,
            str(env.device),
            env.batch_size.numel(),
            plan.seed,
            plan.sync,
        ),
        machine=detect_machine(),
        modes=tuple(found),
    )


@contextmanager
def rollout_mode(env: EnvBase, mode: Mode) -> Iterator[None]:
    """Have the env's rollouts run in this mode."""
    patches = AttributePatches()
    level: Any = env
    while level is not None:
        patches.put(level, "planned", mode != "eager")
        patches.put(level, "compiler", "inductor" if mode == "compiled" else None)
        level = level.base_env if isinstance(level, TransformedEnv) else None
    try:
        yield
    finally:
        patches.undo()


_REPEAT_PART = replace(ROLLOUT_PART, upto=0)
"""A whole repeat; no part's call may be inside another call of the same part."""


def _relabel_repeat(times: CallTimes) -> CallTimes:
    return replace(times, part=ROLLOUT_PART) if times.part == _REPEAT_PART else times


class _Measurement:
    """The measurement of one mode."""

    def __init__(
        self, env: EnvBase, mode: Mode, plan: ProfilePlan, device: AcceleratorLookup
    ) -> None:
        self._env, self._mode, self._plan = env, mode, plan
        self._repeats: list[list[CallTimes]] = []
        self._began: list[int] = []
        self._totals: list[int] = []
        self._steps: list[int] = []
        self._specs: list[int] = []
        self._error: str | None = None
        self._device = device

    def made(self) -> ModeProfile:
        """Measure, and tell what was found."""
        profile = self._timed()
        for name in self._plan.passes:
            if profile.error is not None:
                break
            profile = self._with(name, profile)
        return profile

    def _timed(self) -> ModeProfile:
        plan = self._plan
        try:
            accelerator = self._device.accelerator if plan.sync else None
            meter = ClockMeter(synchronized_clock(plan.clock, accelerator))
            self._seed()
            self._time_specs()
            with attach_meter(self._env, meter, all_wrappers=plan.all_wrappers):
                if plan.warmup:
                    plan.told(f"{self._mode}: warm-up", 0, plan.warmup)
                    sum(self._rolled(plan.warmup))
                self._wait(meter)
                meter.taken()
                for repeat in range(plan.repeats):
                    plan.told(f"{self._mode}: time", repeat, plan.repeats)
                    self._time_once(meter)
        except KeyboardInterrupt:
            self._error = "interrupted"
        except Exception as error:
            self._error = _describe_error(error)
        return self._profile()

    def _seed(self) -> None:
        if self._plan.seed is not None:
            torch.manual_seed(self._plan.seed)
            self._env.set_seed(self._plan.seed)

    def _time_specs(self) -> None:
        for _ in range(3):
            level: EnvBase = self._env
            while isinstance(level, TransformedEnv):
                level._forget_specs()
                level = level.base_env
            start = self._plan.clock()
            _ = self._env.output_spec, self._env.input_spec
            self._specs.append(self._plan.clock() - start)

    def _time_once(self, meter: ClockMeter) -> None:
        made = 0

        def repeat() -> None:
            nonlocal made
            for chunk in self._rolled(self._plan.steps):
                made += chunk
            self._wait(meter)

        start = self._plan.clock()
        try:
            meter.timed(_REPEAT_PART, repeat)()
        finally:
            taken = [_relabel_repeat(times) for times in meter.taken()]
            # All that was done is inside that one call, so that the rows are the total.
            self._totals.append(sum(int(times.own_ns.sum()) for times in taken))
            self._steps.append(made)
            began = [int(times.start_ns.min()) for times in taken]
            self._began.append(min(began, default=start))
            self._repeats.append(taken)

    def _wait(self, meter: ClockMeter) -> None:
        """Have the accelerator do what it was given, if there is one."""
        if self._device.accelerator is not None:
            meter.timed(WAITING_PART, self._device.accelerator.synchronize)()

    def _rolled(self, steps: int) -> Iterator[int]:
        """Make steps; yields how many, chunk after chunk."""
        for chunk in self._env.iter_rollout(steps, self._plan.policy):
            yield chunk.shape[-1]

    def _profile(self) -> ModeProfile:
        steps = np.array(self._steps, np.int64)
        envs = max(self._env.batch_size.numel(), 1)
        return ModeProfile(
            mode=self._mode,
            rows=make_rows(self._repeats, self._began),
            total_ns=np.array(self._totals, np.int64),
            steps=steps,
            frames=steps * envs,
            specs_ns=np.array(self._specs, np.int64),
            notes=self._notes(),
            error=self._error,
        )

    def _notes(self) -> tuple[str, ...]:
        if not self._plan.sync:
            return self._device.notes
        return (*self._device.notes, SYNC_NOTE if self._device.accelerator else NO_SYNC_NOTE)

    def _with(self, name: PassName, profile: ModeProfile) -> ModeProfile:
        for observer in make_observers(name, self._device.accelerator):
            if profile.error is None:
                self._plan.told(f"{self._mode}: {name}", 0, 1)
                profile = self._observed(observer, profile)
        return profile

    def _observed(self, observer: Observer, profile: ModeProfile) -> ModeProfile:
        why = observer.hindrance()
        if why is not None:
            return replace(profile, notes=(*profile.notes, why))
        plan, made, error = self._plan, 0, None
        steps = min(plan.steps, max_recorded_steps(observer))
        try:
            self._seed()
            with attach_meter(self._env, observer, all_wrappers=self._plan.all_wrappers):
                # What a first call sets up is no part of what a step takes.
                sum(self._rolled(max(1, min(plan.warmup, steps))))
                with observer.recording():
                    for chunk in self._rolled(steps):
                        made += chunk
        except KeyboardInterrupt:
            error = "interrupted"
        except Exception as raised:
            error = _describe_error(raised)
        found = observer.found(profile, made) if made else profile
        return replace(found, error=error)


def _describe_error(error: Exception) -> str:
    """An error in words, with where it was raised."""
    if isinstance(error, TdxError):
        return str(error)
    notes = "; ".join(getattr(error, "__notes__", ()))
    return f"{type(error).__name__}: {error}" + (f" ({notes})" if notes else "")


_SHORT_STEPS, _SHORT_WARMUP = 50, 10
_PASS_SLOWDOWN = 3.0
"""How many times as long a step takes in a pass that is not the clean one, about."""
_SAMPLE_BYTES = 8
"""What the samples of a call take in a file, about."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """How long one mode would take.

    Args:
        mode: which.
        steps: that it would make in all, in the clean pass and with warm-up.
        step_us: what a step of a short rollout took.
        seconds: all passes together.
        calls: that would be timed.
        saved_bytes: what they would take in a file.
    """

    mode: Mode
    steps: int
    step_us: float
    seconds: float
    calls: int
    saved_bytes: int


def shorten_plan(plan: ProfilePlan) -> ProfilePlan:
    """The same plan with as few steps as tell how long all of them take."""
    return replace(
        plan,
        steps=min(plan.steps, _SHORT_STEPS),
        warmup=min(plan.warmup, _SHORT_WARMUP),
        repeats=1,
        passes=(),
    )


def estimate_duration(short: Profile, plan: ProfilePlan) -> tuple[Estimate, ...]:
    """How long each mode would take.

    Args:
        short: measured with :func:`shorten_plan`.
        plan: what is to be measured.
    """
    found = []
    for mode in short.modes:
        steps = plan.warmup + plan.steps * plan.repeats
        slowed = min(plan.steps, MAX_HOST_STEPS) * _PASS_SLOWDOWN * len(plan.passes)
        made = max(int(mode.steps.sum()), 1)
        calls = round(count_calls(mode) / made * plan.steps * plan.repeats)
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

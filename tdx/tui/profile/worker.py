"""Worker side of the Profile tab: measures a pipeline and tries changes that may save time."""

from __future__ import annotations

import signal
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from functools import partial
from math import isfinite
from typing import Any, cast

import numpy as np

from tdx.core.transformed_env import TransformedEnv
from tdx.envs import EnvBase
from tdx.inspection.lint.linter import build_lint_context, lint
from tdx.profiling.bottleneck import Cost, list_part_costs
from tdx.profiling.context import SAMPLES_NOTE, STACK_NOTE, profile_stack
from tdx.profiling.interleaved import MarginalCosts, measure_marginal_costs
from tdx.profiling.passes.host import SLOWDOWN_NOTE
from tdx.profiling.plain import OperatorUse, PassName
from tdx.profiling.result import DeviceSummary, DeviceUse, ModeProfile, Profile, Row, histogram
from tdx.profiling.run import ProfilePlan, profile_env
from tdx.profiling.suggestions import Candidate, TriedChange, try_changes
from tdx.rollouts.policies.policy import load_actor
from tdx.rollouts.samples import read_samples
from tdx.stacks import Stack
from tdx.stacks.building import build_stack
from tdx.tui.backend.messages import Job
from tdx.tui.profile.messages import (
    BINS,
    PARTIAL,
    PROGRESS,
    AdviceResult,
    CallCost,
    CostRow,
    Costs,
    MeasuredChange,
    Measurement,
    ModeCosts,
    ProfileProgress,
    StageSaving,
    Sync,
)
from tdx.tui.profile.numbers import describe_idle, format_duration

_FIGURES = ("p50", "p95", "p99", "max")
_MAX_OPERATORS = 40


def join_costs(found: list[Costs]) -> Costs:
    """Join the results of several modes."""
    return Costs(tuple(mode for costs in found for mode in costs.modes))


def build_costs(profile: Profile) -> Costs:
    """Convert a profile to plain data."""
    return Costs(tuple(map(_mode_costs, profile.modes)))


def add_savings(costs: Costs, found: MarginalCosts) -> Costs:
    """Add what the chain saves without each stage.

    The row of a fused group gets those of all its stages.
    """
    (mode,) = costs.modes
    savings = {}
    for stage in found.stages:
        saving, cost = StageSaving(stage.name, None, needed=stage.needed), stage.cost
        if cost is not None and isfinite(cost.saved_us):
            noise = cost.noise_us if isfinite(cost.noise_us) else cost.before_us
            saving = replace(saving, saved_us=cost.saved_us, noise_us=noise)
        savings[stage.index] = saving
    rows = []
    for row in mode.rows:
        places = range(row.index, max(row.upto, row.index) + 1) if row.work == "stage" else ()
        mine = {place: savings[place] for place in places if place in savings}
        rows.append(replace(row, marginals=mine))
    notes = (*mode.notes, f"without each stage: {found.error}") if found.error else mode.notes
    error = found.error if found.error == "interrupted" else mode.error
    return replace(costs, modes=(replace(mode, rows=tuple(rows), notes=notes, error=error),))


def _mode_costs(mode: ModeProfile) -> ModeCosts:
    noise = mode.noise
    # The tab shows the others itself.
    notes = [note for note in mode.notes if note not in (SLOWDOWN_NOTE, STACK_NOTE, SAMPLES_NOTE)]
    return ModeCosts(
        mode=mode.mode,
        rows=tuple(_cost_row(mode, cost) for cost in list_part_costs(mode)),
        step_us=mode.step_us,
        repeats_us=tuple(mode.repeat_us),
        frames_per_second=mode.frames_per_second,
        steps=int(mode.steps.sum()),
        noise=noise.spread,
        judgement=noise.judgement,
        noise_text=noise.message,
        preemption=mode.preemption,
        notes=tuple(notes),
        device=() if mode.device is None else tuple(_device_lines(mode.device)),
        error=mode.error,
    )


def _device_lines(device: DeviceSummary) -> Iterator[str]:
    """Yield the card, and what it does in a step that is traced."""
    gpu = device.gpu
    if gpu is not None:
        clock = f"{gpu.sm_mhz:,} of {gpu.max_sm_mhz:,} MHz"
        yield f"{device.name}: {gpu.name}, driver {gpu.driver}, {clock}"
    if device.traced_us:
        busy = f"busy {format_duration(device.busy_us)} of {format_duration(device.traced_us)}"
        idle = describe_idle(_idle_by_cause(device))
        rest = f"{device.unattributed:.1%} of the work is unattributed"
        yield f"{device.name if gpu is None else 'traced'}: {busy}, {idle}; {rest}"


def _idle_by_cause(device: DeviceSummary | DeviceUse) -> dict[str, float]:
    causes = {
        "nothing launched": device.idle_host_us,
        "between kernels": device.idle_kernel_us,
        "other": device.idle_other_us,
    }
    return {cause: time_us for cause, time_us in causes.items() if time_us}


def _cost_row(mode: ModeProfile, cost: Cost) -> CostRow:
    # The calls of a group may include a reset of a single stage.
    part = max((row.part for row in cost.rows), key=lambda part: part.upto)
    times = np.zeros(len(mode.steps))
    for row in cost.rows:
        np.add.at(times, row.repeats, row.times_ns)
    is_complete = mode.steps > 0
    devices = [mode.on_device[row.key] for row in cost.rows if row.key in mode.on_device]
    memory = [mode.memory[row.key] for row in cost.rows if row.key in mode.memory]
    more: dict[str, Any] = {}
    if devices:
        more["device_us"] = sum(use.time_us for use in devices)
        more["launch_bound"] = any(use.launch_bound for use in devices)
        more["busy_us"] = sum(use.busy_us for use in devices)
        more["idle_us"] = sum((Counter(_idle_by_cause(use)) for use in devices), Counter[str]())
        kernels = sum(use.kernels for use in devices)
        delays = sum(use.launch_delay_us * use.kernels for use in devices)
        more["kernels"] = kernels
        more["delay_us"] = delays / kernels if kernels else 0.0
        largest = max(devices, key=lambda use: use.time_us)
        more["bound_by"], more["evidence"] = largest.bound_by or "", largest.evidence
        waits = [wait for use in devices for wait in use.waits]
        syncs = [Sync(wait.line, wait.calls, wait.call, wait.time_us) for wait in waits]
        priced = {wait.line for wait in waits}
        more["syncs"] = (
            *syncs,
            *(
                Sync(line, often)
                for use in devices
                for line, often in use.syncs.items()
                if line not in priced
            ),
        )
    if mode.operators:
        operators: dict[str, OperatorUse] = {}
        for row in cost.rows:
            for use in mode.operators.get(row.key, ()):
                before = operators.get(use.name, OperatorUse(use.name, 0.0, 0.0))
                operators[use.name] = OperatorUse(
                    use.name, before.calls + use.calls, before.time_us + use.time_us
                )
        ranked = sorted(operators.values(), key=lambda operator: -operator.time_us)
        more["operators"] = tuple(ranked[:_MAX_OPERATORS])
    if memory:
        more["allocated_bytes"] = sum(use.allocated_bytes for use in memory)
    is_engine = part.work == "engine"
    return CostRow(
        work=part.work,
        index=part.index,
        upto=part.upto,
        name=cost.name if is_engine else part.name,
        step_us=cost.step_us,
        median_us=cost.median_us,
        share=cost.share,
        repeats_us=tuple((times[is_complete] / mode.steps[is_complete] / 1000).tolist()),
        calls=tuple(_call_cost(mode, row, is_engine) for row in cost.rows),
        **more,
    )


def _call_cost(mode: ModeProfile, row: Row, is_engine: bool) -> CallCost:
    bins = int(np.clip(2 * len(row.samples_us) ** 0.5, 4, BINS))
    counts, edges = histogram(row.samples_us, bins)
    statistics = asdict(row.statistics)
    return CallCost(
        name=row.part.name if is_engine else row.part.lane,
        n=len(row.times_ns),
        figures={name: float(statistics[name]) for name in _FIGURES},
        step_us=mode.step_share_us(row),
        steps_per_call=mode.steps_per_call(row),
        counts=tuple(counts),
        low_us=edges[0],
        high_us=edges[-1],
    )


_CANCEL_POLL = 0.1


def measure_pipeline(request: Measurement, job: Job) -> Costs:
    """Measure each mode; return what is complete if the job is cancelled."""
    found: list[Costs] = []
    with suppress(KeyboardInterrupt), interrupt_on_cancel(job):
        job.push(PROGRESS, ProfileProgress("creating the env", 0, 1))
        recorded = None if request.samples is None else read_samples(request.samples)
        stack = build_stack(request.pipeline, request.allow_code, recorded)
        env = stack.chain_env
        if env is None:
            return _measure_stack(request, stack, job)
        # The accelerator is always measured if there is one.
        extras: tuple[PassName, ...] = ("memory", "operators")
        passes: list[PassName] = [name for name in extras if name in request.extras]
        passes.append("device")
        marginal_mode = "planned" if "planned" in request.modes else request.modes[0]
        try:
            for mode in request.modes:
                plan = _plan_steps(request, job)
                plan = replace(plan, policy=_policy_for(request, env), passes=tuple(passes))
                found.append(build_costs(profile_env(env, [mode], plan)))
                job.push(PARTIAL, join_costs(found))
                is_complete = found[-1].error is None
                if is_complete and "marginal" in request.extras and mode == marginal_mode:
                    found[-1] = add_savings(found[-1], measure_marginal_costs(env, mode, plan))
                if found[-1].error is not None:
                    break
        finally:
            env.close()
    return join_costs(found)


def _measure_stack(request: Measurement, stack: Stack, job: Job) -> Costs:
    """Measure a stack of another library in its own loop, whatever the requested modes are."""
    try:
        policy = load_actor(request.pipeline, stack, allow_code=request.allow_code)
        plan = replace(_plan_steps(request, job), policy=policy)
        costs = build_costs(profile_stack(stack, plan))
    finally:
        stack.close()
    modes = []
    for mode in costs.modes:
        # Wrappers are stages, with the numbers that they have in the chain pane.
        rows = (replace(row, work="stage") if row.work == "wrapper" else row for row in mode.rows)
        modes.append(replace(mode, rows=tuple(rows)))
    return replace(costs, modes=tuple(modes))


def _plan_steps(request: Measurement, job: Job) -> ProfilePlan:
    return ProfilePlan(
        steps=request.steps,
        warmup=request.warmup,
        repeats=request.repeats,
        policy_name=request.pipeline.policy or "random",
        seed=request.pipeline.env.seed,
        on_progress=lambda doing, done, of: job.push(PROGRESS, ProfileProgress(doing, done, of)),
    )


def _policy_for(request: Measurement, env: EnvBase) -> Any:
    """Return the function that computes actions."""
    steps = max(request.steps, request.warmup)
    return load_actor(request.pipeline, env, steps=steps, allow_code=request.allow_code)


@contextmanager
def interrupt_on_cancel(job: Job) -> Iterator[None]:
    """Raise KeyboardInterrupt in the main thread when the job is cancelled."""
    main = threading.main_thread()
    if threading.current_thread() is not main:
        yield
        return
    over = threading.Event()

    def wait() -> None:
        while not over.is_set():
            if job.wait(_CANCEL_POLL):
                if not over.is_set():
                    # Signal the thread itself, so that a sleeping env wakes up.
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


_INTERRUPTED = "interrupted"
_NO_ADVICE = "no changes to try: the stages are Python code, which tdx does not edit"
_NO_ADVICE_FOR_DATA = "no changes to try: the stages are files, which tdx does not edit"


def find_advice(request: Measurement, job: Job) -> AdviceResult:
    """Measure a pipeline, then each change that may save time."""
    if request.pipeline.is_factory:
        return AdviceResult(error=_NO_ADVICE)
    with suppress(KeyboardInterrupt), interrupt_on_cancel(job):
        job.push(PROGRESS, ProfileProgress("creating the env", 0, 1))
        stack = build_stack(request.pipeline, request.allow_code)
        env = stack.chain_env
        if env is None:
            stack.close()
            return AdviceResult(error=_NO_ADVICE_FOR_DATA)
        try:
            plan = _plan_steps(request, job)
            plan = replace(plan, policy=_policy_for(request, env), passes=("device",))
            (measured,) = profile_env(env, request.modes, plan).modes
            if measured.error is not None:
                return AdviceResult(error=measured.error)
            further = []
            for finding in lint(build_lint_context(request.pipeline, cast("TransformedEnv", env))):
                violation, fix = finding.violation, finding.violation.fix
                if fix is not None:
                    candidate = Candidate(
                        "lint",
                        () if violation.stage is None else (violation.stage,),
                        f"{finding.rule.code}: {violation.message}",
                        fix.title,
                        fix.applied_to(request.pipeline),
                    )
                    further.append(candidate)
        finally:
            env.close()
        plan = replace(plan, policy=None, passes=())
        advised = try_changes(
            request.pipeline,
            measured,
            plan,
            allow_code=request.allow_code,
            further=further,
            policy_of=partial(_policy_for, request),
        )
        return AdviceResult(
            tuple(map(_measured_change, advised.advice)),
            tuple(map(_measured_change, advised.without_gain)),
            advised.refused,
            _INTERRUPTED if advised.interrupted else None,
        )
    return AdviceResult(error=_INTERRUPTED)


def _measured_change(tried: TriedChange) -> MeasuredChange:
    candidate, saving = tried.candidate, tried.saving
    is_edit = candidate.prepare is None
    return MeasuredChange(
        candidate.change,
        candidate.found,
        saving.before_us,
        saving.saved_us,
        saving.noise_us,
        tried.values,
        candidate.pipeline if is_edit else None,
    )

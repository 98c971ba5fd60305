"""Worker side of the Profile tab: measures a pipeline and tries changes that may save time."""

from __future__ import annotations

import signal
import threading
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
from tdx.profiling.candidates import Candidate
from tdx.profiling.context import STACK_NOTE, profile_stack
from tdx.profiling.interleaved import MarginalCost, MarginalCosts, measure_marginal_costs
from tdx.profiling.machine import Machine
from tdx.profiling.passes.choice import PassName
from tdx.profiling.passes.host import SLOWDOWN_NOTE
from tdx.profiling.result import ModeProfile, Numbers, Profile, Row
from tdx.profiling.run import ProfilePlan, profile_env
from tdx.profiling.suggestions import Suggestions, TriedChange, try_changes
from tdx.rollouts.policies.policy import load_actor
from tdx.stacks import Stack
from tdx.stacks.building import build_stack
from tdx.tui.backend.messages import Job
from tdx.tui.profile.messages import (
    BINS,
    PARTIAL,
    PROGRESS,
    AdviceResult,
    CostRow,
    Costs,
    FindAdvice,
    MeasuredChange,
    MeasurePipeline,
    ModeCosts,
    ModeName,
    OperatorCost,
    ProfileProgress,
    StageSaving,
    Sync,
)

_FIGURES = ("mean", "p50", "p90", "p95", "p99", "max")
_MAX_OPERATORS = 40


def join_costs(found: list[Costs]) -> Costs:
    """Join the results of several modes."""
    if not found:
        return Costs((), 1, "", "")
    modes = tuple(mode for each in found for mode in each.modes)
    return Costs(modes, found[0].num_envs, found[0].device, found[0].machine)


def build_costs(profile: Profile) -> Costs:
    """Convert a profile to plain data."""
    modes = tuple(_mode_costs(mode) for mode in profile.modes)
    settings = profile.settings
    return Costs(modes, settings.num_envs, settings.device, _machine_text(profile.machine))


def add_savings(costs: Costs, found: MarginalCosts) -> Costs:
    """Add what the chain saves without each stage.

    A saving is attached to the most expensive row of the stage, or of the group that it is fused
    into.
    """
    (mode,) = costs.modes
    rows = list(mode.rows)
    for stage in found.stages:
        mine = [row for row in rows if row.covers(stage.index)]
        if mine:
            at = rows.index(max(mine, key=lambda row: row.step_us))
            savings = {**rows[at].marginals, stage.index: _stage_saving(stage)}
            rows[at] = replace(rows[at], marginals=savings)
    notes = (*mode.notes, f"without each stage: {found.error}") if found.error else mode.notes
    error = found.error if found.error == "interrupted" else mode.error
    return replace(costs, modes=(replace(mode, rows=tuple(rows), notes=notes, error=error),))


def _stage_saving(stage: MarginalCost) -> StageSaving:
    cost = stage.cost
    known = cost is not None and isfinite(cost.saved_us)
    if cost is None or not known:
        return StageSaving(stage.name, None, needed=stage.needed)
    noise = cost.noise_us if isfinite(cost.noise_us) else cost.before_us
    return StageSaving(stage.name, cost.saved_us, noise, stage.needed)


def _mode_costs(mode: ModeProfile) -> ModeCosts:
    noise = mode.noise
    return ModeCosts(
        mode=mode.mode,
        rows=tuple(_cost_row(mode, row) for row in mode.rows if len(row.times_ns)),
        step_us=mode.step_us,
        frames_per_second=mode.frames_per_second,
        steps=int(mode.steps.sum()),
        noise=noise.spread,
        judgement=noise.judgement,
        noise_text=noise.message,
        preemption=mode.preemption,
        # The tab shows these itself.
        notes=tuple(note for note in mode.notes if note not in (SLOWDOWN_NOTE, STACK_NOTE)),
        error=mode.error,
    )


def _cost_row(mode: ModeProfile, row: Row) -> CostRow:
    statistics = asdict(row.statistics)
    counts, low, high = _histogram(row.samples_us)
    memory, device = mode.memory.get(row.key), mode.on_device.get(row.key)
    more: dict[str, Any] = {}
    if device is not None:
        more["device_us"], more["kernels"] = device.time_us, device.kernels
        more["launch_bound"] = device.launch_bound
        more["syncs"] = tuple(Sync(where, often) for where, often in device.syncs.items())
    if mode.operators:
        uses = mode.operators.get(row.key, ())[:_MAX_OPERATORS]
        more["operators"] = tuple(OperatorCost(u.name, u.calls, u.time_us) for u in uses)
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
        steps_per_call=mode.steps_per_call(row),
        counts=counts,
        low_us=low,
        high_us=high,
        error_us=_error_us(mode, row),
        allocated_bytes=None if memory is None else memory.allocated_bytes,
        **more,
    )


def _error_us(mode: ModeProfile, row: Row) -> float:
    """Return two standard errors of a row's share of the step."""
    calls, steps = len(row.times_ns), int(mode.steps.sum())
    if calls < 2 or not steps:
        return mode.step_share_us(row)
    return float(2 * np.std(row.times_ns, ddof=1) * calls**0.5 / steps / 1000)


def _histogram(samples: Numbers) -> tuple[tuple[int, ...], float, float]:
    """Return a histogram up to the 99th percentile; the last bin includes larger values."""
    low, high = float(samples.min()), float(np.quantile(samples, 0.99, method="higher"))
    high = high if high > low else low + 1e-3
    bins = int(np.clip(2 * len(samples) ** 0.5, 4, BINS))
    counts, _ = np.histogram(np.minimum(samples, high), bins, (low, high))
    return tuple(counts.tolist()), low, high


def _machine_text(machine: Machine) -> str:
    parts = [machine.processor, f"{machine.cores} cores", *machine.accelerators]
    return ", ".join(part for part in parts if part)


_CANCEL_POLL = 0.1


def measure_pipeline(request: MeasurePipeline, job: Job) -> Costs:
    """Measure each mode; return what is complete if the job is cancelled."""
    found: list[Costs] = []
    with suppress(KeyboardInterrupt), interrupt_on_cancel(job):
        job.push(PROGRESS, ProfileProgress("creating the env", 0, 1))
        stack = build_stack(request.pipeline, request.allow_code)
        env = stack.chain_env
        if env is None:
            return _measure_stack(request, stack, job)
        try:
            for mode in request.modes:
                plan = _plan_for(request, env, job, _passes_for(request))
                found.append(build_costs(profile_env(env, [mode], plan)))
                job.push(PARTIAL, join_costs(found))
                if found[-1].error is None and mode == _marginal_mode(request):
                    found[-1] = add_savings(found[-1], measure_marginal_costs(env, mode, plan))
                if found[-1].error is not None:
                    break
        finally:
            env.close()
    return join_costs(found)


def _measure_stack(request: MeasurePipeline, stack: Stack, job: Job) -> Costs:
    """Measure a stack of another library in its own loop, whatever the requested modes are."""
    try:
        policy = load_actor(request.pipeline, None, allow_code=request.allow_code)
        plan = replace(_plan_steps(request, job), policy=policy)
        costs = build_costs(profile_stack(stack, plan))
        return replace(costs, modes=tuple(_with_stages(mode) for mode in costs.modes))
    finally:
        stack.close()


def _with_stages(mode: ModeCosts) -> ModeCosts:
    """Show wrappers as stages: with the numbers that they have in the chain pane."""
    rows = (replace(row, work="stage") if row.work == "wrapper" else row for row in mode.rows)
    return replace(mode, rows=tuple(rows))


def _marginal_mode(request: MeasurePipeline) -> ModeName | None:
    """Return the mode in which stages are left out: ``planned`` if it is measured."""
    if "marginal" not in request.extras:
        return None
    return "planned" if "planned" in request.modes else request.modes[0]


def _passes_for(request: MeasurePipeline) -> tuple[PassName, ...]:
    """Return what to measure apart from time; always the accelerator if there is one."""
    wanted: tuple[PassName, ...] = ("memory", "operators")
    return (*(each for each in wanted if each in request.extras), "device")


def _plan_for(
    request: MeasurePipeline | FindAdvice, env: EnvBase, job: Job, passes: tuple[PassName, ...]
) -> ProfilePlan:
    """Return how to measure an env.

    Args:
        request: The request.
        env: The env.
        job: Receives the progress.
        passes: What to measure apart from time.
    """
    return replace(_plan_steps(request, job), policy=_policy_for(request, env), passes=passes)


def _plan_steps(request: MeasurePipeline | FindAdvice, job: Job) -> ProfilePlan:
    return ProfilePlan(
        steps=request.steps,
        warmup=request.warmup,
        repeats=request.repeats,
        policy_name=request.pipeline.policy or "random",
        seed=request.pipeline.env.seed,
        on_progress=lambda doing, done, of: job.push(PROGRESS, ProfileProgress(doing, done, of)),
    )


def _policy_for(request: MeasurePipeline | FindAdvice, env: EnvBase) -> Any:
    """Return the function that computes actions.

    Raises:
        TdxError: The policy of the pipeline does not fit the env.
    """
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


def find_advice(request: FindAdvice, job: Job) -> AdviceResult:
    """Measure a pipeline, then each change that may save time."""
    if request.pipeline.is_factory:
        return AdviceResult(request.mode, error=_NO_ADVICE)
    with suppress(KeyboardInterrupt), interrupt_on_cancel(job):
        job.push(PROGRESS, ProfileProgress("creating the env", 0, 1))
        stack = build_stack(request.pipeline, request.allow_code)
        env = stack.chain_env
        if env is None:
            stack.close()
            return AdviceResult(request.mode, error=_NO_ADVICE)
        try:
            plan = _plan_for(request, env, job, ("device",))
            (measured,) = profile_env(env, [request.mode], plan).modes
            if measured.error is not None:
                return AdviceResult(request.mode, error=measured.error)
            further = list(_lint_candidates(request, env))
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
        return _advice_result(request, advised)
    return AdviceResult(request.mode, error=_INTERRUPTED)


def _lint_candidates(request: FindAdvice, env: EnvBase) -> Iterator[Candidate]:
    """Yield the fixes of ``tdx check``."""
    for each in lint(build_lint_context(request.pipeline, cast("TransformedEnv", env))):
        stage, fix = each.violation.stage, each.violation.fix
        if fix is not None:
            yield Candidate(
                "lint",
                () if stage is None else (stage,),
                f"{each.rule.code}: {each.violation.message}",
                fix.title,
                fix.applied_to(request.pipeline),
            )


def _advice_result(request: FindAdvice, advised: Suggestions) -> AdviceResult:
    return AdviceResult(
        request.mode,
        tuple(_measured_change(each) for each in advised.advice),
        tuple(_measured_change(each) for each in advised.without_gain),
        advised.refused,
        _INTERRUPTED if advised.interrupted else None,
    )


def _measured_change(tried: TriedChange) -> MeasuredChange:
    candidate, saving = tried.candidate, tried.saving
    is_edit = candidate.prepare is None and candidate.mode is None
    return MeasuredChange(
        candidate.change,
        candidate.found,
        saving.before_us,
        saving.saved_us,
        saving.noise_us,
        tried.values,
        candidate.pipeline if is_edit else None,
    )

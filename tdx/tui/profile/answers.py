"""Measures a pipeline; runs in a worker of its own."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from tdx.envs import EnvBase
from tdx.pipeline import build_env
from tdx.profiling.marginal import measure_marginal_costs
from tdx.profiling.passes.choice import PassName
from tdx.profiling.run import ProfilePlan, profile_env
from tdx.rollouts.policies.policy import (
    PolicyRequest,
    check_action_count,
    check_policy,
    load_policy,
)
from tdx.tui.backend.job import Job
from tdx.tui.profile.cost_rows import costs_of, joined, with_marginals
from tdx.tui.profile.requests import PARTLY, PROGRESS, Advise, Costs, Measure, ModeName
from tdx.tui.profile.requests import Progress as Told

_LOOK_EVERY = 0.1


def measure(request: Measure, job: Job) -> Costs:
    """Measure one mode after the other; what was measured until it is cancelled is there."""
    found: list[Costs] = []
    with suppress(KeyboardInterrupt), interrupted_by(job):
        job.push(PROGRESS, Told("making the env", 0, 1))
        env = build_env(request.pipeline, request.allow_code)
        try:
            for mode in request.modes:
                plan = plan_for(request, env, job, passes_for(request))
                found.append(costs_of(profile_env(env, [mode], plan)))
                job.push(PARTLY, joined(found))
                if found[-1].error is None and mode == _marginal_mode(request):
                    found[-1] = with_marginals(found[-1], measure_marginal_costs(env, mode, plan))
                if found[-1].error is not None:
                    break
        finally:
            env.close()
    return joined(found)


def _marginal_mode(request: Measure) -> ModeName | None:
    """The mode in which stages are left out: that of rollouts, where it is measured."""
    if "marginal" not in request.extras:
        return None
    return "planned" if "planned" in request.modes else request.modes[0]


def passes_for(request: Measure) -> tuple[PassName, ...]:
    """What is measured besides time; of an accelerator everything, where there is one."""
    wanted: tuple[PassName, ...] = ("memory", "operators")
    return (*(each for each in wanted if each in request.extras), "device")


def plan_for(
    request: Measure | Advise, env: EnvBase, job: Job, passes: tuple[PassName, ...]
) -> ProfilePlan:
    """How an env is measured.

    Args:
        request: what was asked.
        env: the env.
        job: what is told of the progress.
        passes: what is measured besides time.
    """
    return ProfilePlan(
        steps=request.steps,
        warmup=request.warmup,
        repeats=request.repeats,
        policy=policy_for(request, env),
        policy_name=request.pipeline.policy or "random",
        seed=request.pipeline.env.seed,
        passes=passes,
        on_progress=lambda doing, done, of: job.push(PROGRESS, Told(doing, done, of)),
    )


def policy_for(request: Measure | Advise, env: EnvBase) -> Any:
    """What gives the actions in an env.

    Raises:
        TdxError: the pipeline's policy does not fit.
    """
    policy = load_policy(PolicyRequest.of(request.pipeline, None, request.allow_code), env)
    check_policy(policy, env)
    check_action_count(policy, max(request.steps, request.warmup))
    return policy.start_at(0)


@contextmanager
def interrupted_by(job: Job) -> Iterator[None]:
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

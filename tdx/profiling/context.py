"""Profile a block of the user's own code, or the env of another library in its usual loop."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, ParamSpec, Self, TypeVar

import numpy as np

from tdx.core.chain import flatten_chain, flatten_stages
from tdx.core.envs import EnvBase
from tdx.core.meter import CHUNKS
from tdx.core.transforms import Transform
from tdx.profiling.clock import CallTimes, ClockMeter, make_rows
from tdx.profiling.machine import detect_machine, quiet_environment
from tdx.profiling.processor import (
    ProcessorReading,
    ProcessorUse,
    processor_use,
    read_processor,
)
from tdx.profiling.result import ModeProfile, Profile, Settings
from tdx.profiling.run import ProfilePlan, describe_error
from tdx.stacks import Stack, open_stack
from tdx.stacks.native_times import STEP_PART, timed_chain
from tdx.stacks.stack import located_errors
from tdx.stacks.tracer import Driver

P = ParamSpec("P")
R = TypeVar("R")


class profile:  # noqa: N801 - it is used like a function
    """Measure every call of an env, or of a chain over stored data, in a block or a function.

    Values, randomness and state do not change. Only time inside the env or the chain counts, not
    the code around it. Nothing remains attached afterwards, and an env that is not measured has no
    overhead.

    Args:
        target: Env with its chain, transform that maps stored data, or an env of another library,
            whose wrappers are measured.
        threads: Threads for torch operators in the block. ``None``: unchanged.
        all_wrappers: Include the thin Gymnasium wrappers that ``gymnasium.make`` adds if there are
            no others.

    Raises:
        ArgumentError: ``target`` has another type, or is being profiled already.

    Example:
        >>> import tdx
        >>> env = tdx.TransformedEnv(tdx.GymEnv("Pendulum-v1"), tdx.RewardSum())
        >>> with tdx.profile(env) as measured:
        ...     rollout = env.rollout(100)
        >>> [row.part.label for row in measured.result.modes[0].rows if row.part.work == "stage"]
        ['0 RewardSum', '0 RewardSum']

        As a decorator it measures every call of a function, all in one result:

        >>> @tdx.profile(env)
        ... def collect():
        ...     return env.rollout(50)
        >>> _ = collect(), collect()
    """

    def __init__(
        self,
        target: Any,
        *,
        threads: int | None = None,
        all_wrappers: bool = False,
    ) -> None:
        # A transform maps stored data and is no stack. An env of tdx is one, but stays the target:
        # `result` takes its device and stages from the env itself.
        self._stack = None if isinstance(target, Transform) else open_stack(target)
        if not isinstance(target, EnvBase | Transform):
            target = self._stack
        self.target, self.threads, self.all_wrappers = target, threads, all_wrappers
        self._meter = ClockMeter()
        self._blocks: list[list[CallTimes]] = []
        self._began: list[int] = []
        self._processor: list[ProcessorUse] = []
        self._before: ProcessorReading | None = None
        self._contexts: ExitStack | None = None

    def __enter__(self) -> Self:
        with ExitStack() as contexts:
            contexts.enter_context(quiet_environment(self.threads))
            if self._stack is None:
                contexts.enter_context(timed_chain(self.target, self._meter))
            else:
                measuring = self._stack.measure(self._meter, all_stages=self.all_wrappers)
                contexts.enter_context(measuring)
            self._contexts = contexts.pop_all()
        self._before = read_processor()
        self._began.append(time.perf_counter_ns())
        return self

    def __exit__(self, *raised: object) -> None:
        assert self._contexts is not None
        assert self._before is not None
        use = processor_use(self._before, read_processor())
        contexts, self._contexts = self._contexts, None
        try:
            contexts.close()
        except BaseException:
            # The times of this block are not valid.
            self._meter.collect()
            self._began.pop()
            raise
        self._blocks.append(self._meter.collect())
        self._processor.append(use)

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        """Measure every call of a function."""

        @functools.wraps(function)
        def run(*args: P.args, **kwargs: P.kwargs) -> R:
            with self:
                return function(*args, **kwargs)

        return run

    @property
    def result(self) -> Profile:
        """Measurements of all blocks so far; each block is a repeat."""
        target = self.target
        if isinstance(target, EnvBase):
            base, stages = flatten_chain(target)
            device, envs = str(target.device), target.batch_size.numel()
            subject = base.display_name
            names = tuple(type(stage).__name__ for stage in stages)
        elif isinstance(target, Transform):
            names = tuple(type(stage).__name__ for stage in flatten_stages((target,)))
            device, envs, subject = "", 1, type(target).__name__
        else:
            names = tuple(stage.name for stage in target.stages)
            device, envs, subject = target.device, target.num_envs or 1, target.name
        steps = np.array([_count_steps(block) for block in self._blocks], np.int64)
        mode = ModeProfile(
            mode="observed",
            rows=make_rows(self._blocks, self._began[: len(self._blocks)]),
            # The total time of the outermost calls is the sum of all own times.
            total_ns=np.array(
                [sum(times.total_ns for times in block) for block in self._blocks], np.int64
            ),
            steps=steps,
            frames=steps * max(envs, 1),
            processor=tuple(self._processor),
        )
        count = int(steps.sum())
        settings = Settings(count, 0, len(self._blocks), "its own", device, envs)
        return Profile(subject, names, settings, detect_machine(), (mode,))


def _count_steps(block: list[CallTimes]) -> int:
    """Return the number of steps of the outermost stage, or of calls of a chain."""
    steps = {times.part: int(times.steps.sum()) for times in block}
    count_of_steps = sum(steps.get(part, 0) for part in (STEP_PART, CHUNKS))
    if count_of_steps:
        return count_of_steps
    # Sub-envs, and wrappers that step more than once, have more calls than the env has steps.
    around = {
        part.index: count
        for part, count in steps.items()
        if part.lane == "step" and part.work in ("env", "wrapper")
    }
    return around[max(around)] if around else max(steps.values(), default=0)


STACK_NOTE = (
    "Only time inside the env and its wrappers counts. Modes, memory, operators and the device are "
    "measured only for envs with a chain of tdx."
)
SAMPLES_NOTE = (
    "Only time in the steps and in getting the samples counts. Modes, memory, operators and the "
    "device are measured only for envs with a chain of tdx."
)
"""For checkpoints and data pipelines, which have no env."""


def profile_stack(stack: Stack, plan: ProfilePlan | None = None) -> Profile:
    """Measure the env and each stage of a stack of another library in random steps.

    An error of the env, or an interrupt, ends the measurement; the result then holds the
    measurements until then, and its ``error``.
    """
    from tdx.stacks.samples import SampleStack

    plan = plan or ProfilePlan()
    profiler = profile(stack, threads=plan.threads, all_wrappers=plan.all_wrappers)
    error: str | None = None
    try:
        with stack.seeded(plan.seed):
            driver = stack.driver(plan.policy)

            def report(doing: str, before: int, of: int, steps: int) -> None:
                plan.report_progress(doing, before + steps, of)

            if plan.warmup:
                warm_up = functools.partial(report, "warm-up", 0, plan.warmup)
                _make_steps(stack, driver, plan.warmup, warm_up)
            for repeat in range(plan.repeats):
                before, total = repeat * plan.steps, plan.repeats * plan.steps
                with profiler:
                    _make_steps(
                        stack, driver, plan.steps, functools.partial(report, "time", before, total)
                    )
    except KeyboardInterrupt:
        error = "interrupted"
    except Exception as raised:
        error = describe_error(raised)
    result = profiler.result
    env = result.settings
    settings = replace(plan, sync=False).settings(env.device, env.num_envs)
    note = SAMPLES_NOTE if isinstance(stack, SampleStack) else STACK_NOTE
    mode = replace(result.modes[0], notes=(note, *stack.notes), error=error)
    return replace(result, subject=plan.subject or result.subject, settings=settings, modes=(mode,))


_REPORT_INTERVAL = 1.0
"""Seconds of steps after which they are reported: a repeat of a slow stack takes minutes."""


def _make_steps(stack: Stack, driver: Driver, steps: int, report: Callable[[int], None]) -> None:
    """Step the env of a stack, reset it when that is due, and report steps that take long.

    An error of a stage names it.
    """
    with located_errors(stack):
        report(0)
        reported = time.monotonic()
        for step in range(steps):
            if driver.reset_due:
                driver.reset(None)
            driver.step(None)
            if (now := time.monotonic()) - reported >= _REPORT_INTERVAL:
                reported = now
                report(step + 1)

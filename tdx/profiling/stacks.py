"""Profile the env of another library in the loop that its users write."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tdx.profiling.context import profile
from tdx.profiling.result import Profile, Settings
from tdx.profiling.run import ProfilePlan
from tdx.stacks import Stack

STACK_NOTE = (
    "Only time inside the env and its wrappers counts. Modes, memory, operators and the device are "
    "measured for chains of tdx: add a stage by --t."
)


def profile_stack(stack: Stack, plan: ProfilePlan | None = None) -> Profile:
    """Measure the env and each stage of a stack in random steps.

    An error of the env, or an interrupt, ends the measurement; the result then holds the
    measurements until then, and its ``error``.

    Args:
        stack: Stack of another library than tdx.
        plan: Steps, warm-up, repeats, policy, seed and threads. ``None``: defaults.

    Example:
        >>> import gymnasium
        >>> from tdx.stacks import open_stack
        >>> env = gymnasium.wrappers.ClipAction(gymnasium.make("Pendulum-v1"))
        >>> found = profile_stack(open_stack(env), ProfilePlan(steps=5, warmup=0, repeats=2))
        >>> [row.part.label for row in found.modes[0].rows if row.part.lane == "step"][::4]
        ['env Pendulum-v1', 'wrapper ClipAction']
    """
    plan = plan or ProfilePlan()
    measured = profile(stack, threads=plan.threads, all_wrappers=plan.all_wrappers)
    error: str | None = None
    try:
        with stack.seeded(plan.seed):
            tracer = stack.driver(plan.policy)
            plan.report_progress("warm-up", 0, plan.warmup)
            _run(tracer, plan.warmup)
            for repeat in range(plan.repeats):
                plan.report_progress("time", repeat, plan.repeats)
                with measured:
                    _run(tracer, plan.steps)
    except KeyboardInterrupt:
        error = "interrupted"
    except Exception as raised:
        error = f"{type(raised).__name__}: {raised}"
    result = measured.result
    settings = Settings(
        plan.steps,
        plan.warmup,
        plan.repeats,
        plan.policy_name,
        result.settings.device,
        result.settings.num_envs,
        plan.seed,
        False,
    )
    mode = replace(
        result.modes[0], notes=(STACK_NOTE, *stack.timing_notes, *stack.notes), error=error
    )
    return replace(result, subject=plan.subject or result.subject, settings=settings, modes=(mode,))


def _run(driver: Any, steps: int) -> None:
    for _ in range(steps):
        if driver.reset_due:
            driver.reset(None)
        driver.step(None)

"""How long a measurement takes, from a short one."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tdx.profiling.calls import call_count
from tdx.profiling.passes.choice import MOST_STEPS
from tdx.profiling.result import Mode, Profile
from tdx.profiling.run import ProfilePlan

_STEPS, _WARMUP = 50, 10
_SLOWED = 3.0
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


def few(plan: ProfilePlan) -> ProfilePlan:
    """The same plan with as few steps as tell how long all of them take."""
    return replace(
        plan,
        steps=min(plan.steps, _STEPS),
        warmup=min(plan.warmup, _WARMUP),
        repeats=1,
        passes=(),
    )


def estimate_of(short: Profile, plan: ProfilePlan) -> tuple[Estimate, ...]:
    """How long each mode would take.

    Args:
        short: measured with :func:`few`.
        plan: what is to be measured.
    """
    found = []
    for mode in short.modes:
        steps = plan.warmup + plan.steps * plan.repeats
        slowed = min(plan.steps, MOST_STEPS) * _SLOWED * len(plan.passes)
        made = max(int(mode.steps.sum()), 1)
        calls = round(call_count(mode) / made * plan.steps * plan.repeats)
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

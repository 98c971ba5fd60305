"""Measure rollouts of several envs in alternation, so that drift affects all of them alike."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from tdx import accelerators
from tdx.core.envs import EnvBase
from tdx.profiling.machine import quiet_environment
from tdx.profiling.result import Mode, Numbers
from tdx.profiling.run import ProfilePlan, rollout_mode

MIN_SHARE = 0.01
"""Smaller differences, as a share of a step, are never significant."""
_T_QUANTILES = (12.71, 4.30, 3.18, 2.78)
_MAX_PARTS, _MIN_PART_STEPS = 4, 100
"""Many short turns are more precise than few long ones if other programs run, but deferred stages
only pay off in rollouts of some length."""


@dataclass(frozen=True, slots=True)
class TimeDifference:
    """Difference between the step times of two envs, measured in alternation.

    Args:
        before_us: Median of the first env.
        after_us: Median of the second env.
        saved_us: Median of the saved time; negative if the second env takes longer.
        noise_us: 95 % confidence interval of ``saved_us``, half width; infinite after one turn.
        turns: Number of measurements of both.
    """

    before_us: float
    after_us: float
    saved_us: float
    noise_us: float
    turns: int

    @property
    def is_significant(self) -> bool:
        """True if the difference exceeds the noise and 1 % of the step."""
        return abs(self.saved_us) > max(self.noise_us, MIN_SHARE * self.before_us)

    @property
    def saved_share(self) -> float:
        """Saved share of the first env's step, from 0 to 1."""
        return self.saved_us / self.before_us if self.before_us else 0.0


@dataclass(frozen=True, slots=True)
class Contender:
    """An env that is compared with others.

    Args:
        env: Env with its chain.
        policy: Policy that acts in it.
        mode: Mode of its rollouts. ``None``: the common mode.
    """

    env: EnvBase
    policy: Any = None
    mode: Mode | None = None


@dataclass(frozen=True)
class InterleavedTimes:
    """Step times of each contender in each turn.

    Args:
        step_us: Times, float64 ``[turns, contenders]``; NaN if a contender failed.
        failures: Errors of the contenders that failed, by index.
        interrupted: Whether Ctrl-C ended the measurement early.
    """

    step_us: Numbers
    failures: dict[int, str] = field(default_factory=dict)
    interrupted: bool = False

    def difference(self, before: int, after: int) -> TimeDifference:
        """Return the difference between two contenders, by index."""
        return compute_difference(self.step_us[:, before], self.step_us[:, after])


def compute_difference(before: Numbers, after: Numbers) -> TimeDifference:
    """Compute the difference between two series measured in alternation.

    Args:
        before: Times of the first in µs, ``[turns]``.
        after: Times of the second in µs, ``[turns]``.

    Example:
        >>> found = compute_difference(np.array([10.0, 10.2, 10.1]), np.array([8.0, 8.1, 8.1]))
        >>> found.saved_us, found.is_significant
        (2.0, True)
    """
    saved, turns = before - after, len(before)
    middle = [float(np.median(each)) if turns else float("nan") for each in (before, after, saved)]
    return TimeDifference(middle[0], middle[1], round(middle[2], 6), _compute_noise(saved), turns)


def _compute_noise(saved: Numbers) -> float:
    """Return the half width of the 95 % confidence interval of the median."""
    turns = len(saved)
    if turns < 2:
        return float("inf")
    if turns - 2 < len(_T_QUANTILES):
        return _T_QUANTILES[turns - 2] * float(np.std(saved, ddof=1)) / turns**0.5
    # By rank, so that turns disturbed by other programs do not count.
    low = int((turns - 1.96 * turns**0.5) / 2)
    ranked = np.sort(saved)
    middle = float(np.median(saved))
    return float(max(ranked[turns - 1 - low] - middle, middle - ranked[low]))


def measure_interleaved(
    contenders: Sequence[Contender],
    mode: Mode,
    plan: ProfilePlan,
) -> InterleavedTimes:
    """Measure rollouts of several envs in alternation: A B C C B A, and again.

    Each repeat of the plan is up to four turns, which share its steps. The contenders may share
    their base env. A contender that raises is skipped from then on.

    Args:
        contenders: Envs with their policies.
        mode: Mode of the rollouts, unless a contender has its own.
        plan: Steps, warm-up, repeats, seed, threads and clock.
    """
    failures: dict[int, str] = {}

    def timed(place: int, steps: int) -> float:
        if place in failures:
            return float("nan")
        try:
            return _measure_step(contenders[place], mode, plan, steps)
        except Exception as error:
            failures[place] = str(error) or type(error).__name__
            return float("nan")

    turns: list[Numbers] = []
    parts = min(max(plan.steps // _MIN_PART_STEPS, 1), _MAX_PARTS)
    steps = plan.steps // parts
    interrupted = False
    with quiet_environment(plan.threads):
        try:
            for place in range(len(contenders)):
                timed(place, max(plan.warmup, 1))
            for turn in range(plan.repeats * parts):
                plan.report_progress("alternating", turn, plan.repeats * parts)
                turns.append(_measure_round(len(contenders), lambda place: timed(place, steps)))
        except KeyboardInterrupt:
            interrupted = True
    return InterleavedTimes(np.array(turns).reshape(-1, len(contenders)), failures, interrupted)


def _measure_round(contenders: int, timed: Callable[[int], float]) -> Numbers:
    """Measure in both orders, so that a steady drift adds the same to every contender."""
    forward = [timed(place) for place in range(contenders)]
    backward = [timed(place) for place in reversed(range(contenders))]
    return (np.array(forward) + np.array(backward[::-1])) / 2


def _measure_step(contender: Contender, mode: Mode, plan: ProfilePlan, steps: int) -> float:
    env = contender.env
    if plan.seed is not None:
        torch.manual_seed(plan.seed)
        env.set_seed(plan.seed)
    with rollout_mode(env, contender.mode or mode):
        steps_run, start = 0, plan.clock()
        for chunk in env.iter_rollout(steps, contender.policy):
            steps_run += chunk.shape[-1]
        wait_for_device(env.device)
        return (plan.clock() - start) / steps_run / 1000


def wait_for_device(device: torch.device) -> None:
    """Wait until an accelerator has finished its work."""
    if device.type != "cpu":
        accelerators.synchronize(device)

"""Measure rollouts of several envs in alternation, so that drift affects all of them alike."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from tdx.core.envs import EnvBase
from tdx.profiling.machine import quiet_environment
from tdx.profiling.result import Mode, Numbers
from tdx.profiling.run import ProfilePlan, rollout_mode

MIN_SHARE = 0.01
"""A difference below this share of a step is none, however often it was seen."""
_T_QUANTILES = (12.71, 4.30, 3.18, 2.78)
_MAX_PARTS, _MIN_PART_STEPS = 4, 100
"""Many short turns tell more than few long ones where other programs run as well; but stages that
wait for the chunk to be complete pay only in rollouts of some length."""


@dataclass(frozen=True, slots=True)
class TimeDifference:
    """What a step takes in two envs, measured in turns.

    Args:
        before_us: in the first, the median.
        after_us: in the second.
        saved_us: how much less the second takes; negative where it takes more.
        noise_us: how far ``saved_us`` may be off, in 95 of 100 cases; infinite after one turn.
        turns: how often both were measured.
    """

    before_us: float
    after_us: float
    saved_us: float
    noise_us: float
    turns: int

    @property
    def is_significant(self) -> bool:
        """Whether it is more than noise, and more than 1 % of the step."""
        return abs(self.saved_us) > max(self.noise_us, MIN_SHARE * self.before_us)

    @property
    def saved_share(self) -> float:
        """What is saved of the first one's step, from 0 to 1."""
        return self.saved_us / self.before_us if self.before_us else 0.0


@dataclass(frozen=True, slots=True)
class Contender:
    """An env that is measured beside others.

    Args:
        env: the env, with its chain.
        policy: what acts in it.
        mode: how it runs; as the others by default.
    """

    env: EnvBase
    policy: Any = None
    mode: Mode | None = None


@dataclass(frozen=True)
class InterleavedTimes:
    """What a step took of each contender in each turn.

    Args:
        step_us: float64 ``[turns, contenders]``; NaN where one failed.
        failures: what was raised by those that failed, by their place.
        interrupted: whether Ctrl-C ended it before all turns were made.
    """

    step_us: Numbers
    failures: dict[int, str] = field(default_factory=dict)
    interrupted: bool = False

    def median_us(self, place: int) -> float:
        """What a step of one takes; NaN before the first turn was complete."""
        return float(np.median(self.step_us[:, place])) if len(self.step_us) else float("nan")

    def difference(self, before: int, after: int) -> TimeDifference:
        """The difference of two contenders, by their places."""
        return compute_difference(self.step_us[:, before], self.step_us[:, after])


def compute_difference(before: Numbers, after: Numbers) -> TimeDifference:
    """The difference of two things measured in turns.

    Args:
        before: what the first took in each turn, in µs, ``[turns]``.
        after: the same of the second.

    Example:
        >>> found = compute_difference(np.array([10.0, 10.2, 10.1]), np.array([8.0, 8.1, 8.1]))
        >>> found.saved_us, found.is_significant
        (2.0, True)
    """
    saved, turns = before - after, len(before)
    middle = [float(np.median(each)) if turns else float("nan") for each in (before, after, saved)]
    return TimeDifference(middle[0], middle[1], round(middle[2], 6), _compute_noise(saved), turns)


def _compute_noise(saved: Numbers) -> float:
    """How far the median of all there could be is from that of these, in 95 of 100 cases."""
    turns = len(saved)
    if turns < 2:
        return float("inf")
    if turns - 2 < len(_T_QUANTILES):
        return _T_QUANTILES[turns - 2] * float(np.std(saved, ddof=1)) / turns**0.5
    # By rank, so that the turns in which something else had the machine do not count.
    low = int((turns - 1.96 * turns**0.5) / 2)
    ranked = np.sort(saved)
    middle = float(np.median(saved))
    return float(max(ranked[turns - 1 - low] - middle, middle - ranked[low]))


def measure_interleaved(
    contenders: Sequence[Contender],
    mode: Mode,
    plan: ProfilePlan,
) -> InterleavedTimes:
    """Measure rollouts of several envs in turns: A B C C B A, and again.

    Each repeat of the plan is up to four turns, which share its steps.

    The envs may share the env inside. One that raises is left out from then on.

    Args:
        contenders: the envs, each with what acts in it.
        mode: how they run, unless one says otherwise.
        plan: steps, warm-up, repeats, seed, threads and clock.
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
                plan.told("in turns", turn, plan.repeats * parts)
                turns.append(_measure_round(len(contenders), lambda place: timed(place, steps)))
        except KeyboardInterrupt:
            interrupted = True
    return InterleavedTimes(np.array(turns).reshape(-1, len(contenders)), failures, interrupted)


def _measure_round(contenders: int, timed: Callable[[int], float]) -> Numbers:
    """Forth and back, so that a steady drift adds the same to everyone."""
    there = [timed(place) for place in range(contenders)]
    back = [timed(place) for place in reversed(range(contenders))]
    return (np.array(there) + np.array(back[::-1])) / 2


def _measure_step(contender: Contender, mode: Mode, plan: ProfilePlan, steps: int) -> float:
    env = contender.env
    if plan.seed is not None:
        torch.manual_seed(plan.seed)
        env.set_seed(plan.seed)
    with rollout_mode(env, contender.mode or mode):
        made, start = 0, plan.clock()
        for chunk in env.iter_rollout(steps, contender.policy):
            made += chunk.shape[-1]
        wait_for_device(env.device)
        return (plan.clock() - start) / made / 1000


def wait_for_device(device: torch.device) -> None:
    """Wait until an accelerator has done all that it was given."""
    if device.type != "cpu":
        torch.accelerator.synchronize(device)

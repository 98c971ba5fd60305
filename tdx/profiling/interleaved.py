"""Measure rollouts of several envs in alternation, so that drift affects all of them alike.

The marginal cost of a stage is measured so: the chain with and without it, effects on neighbors
included.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
import torch

from tdx.core.chain import flatten_chain
from tdx.core.envs import EnvBase
from tdx.core.transformed_env import TransformedEnv
from tdx.core.transforms import Compose
from tdx.foundation import accelerators
from tdx.foundation.errors import TdxError
from tdx.foundation.serialization import Entries, Entry, Result, finite
from tdx.profiling.machine import quiet_environment
from tdx.profiling.plain import MIN_SHARE
from tdx.profiling.result import FloatArray, Mode
from tdx.profiling.run import ProfilePlan, profile_env, rollout_mode

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
    """An env with its chain that is compared with others, and the policy that acts in it."""

    env: EnvBase
    policy: Any = None


@dataclass(frozen=True)
class InterleavedTimes:
    """Step times, float64 ``[turns, contenders]``; NaN for a contender that failed.

    Failures are errors by index. ``interrupted``: Ctrl-C ended the measurement early.
    """

    step_us: FloatArray
    failures: dict[int, str] = field(default_factory=dict)
    interrupted: bool = False

    def difference(self, before: int, after: int) -> TimeDifference:
        """Return the difference between two contenders, by index."""
        return compute_difference(self.step_us[:, before], self.step_us[:, after])


def compute_difference(before: FloatArray, after: FloatArray) -> TimeDifference:
    """Compute the difference between two series of times ``[turns]``, measured in alternation."""
    saved, turns = before - after, len(before)
    middle = [
        float(np.median(series)) if turns else float("nan") for series in (before, after, saved)
    ]
    # Half width of the 95 % confidence interval.
    if turns < 2:
        noise = float("inf")
    elif turns - 2 < len(_T_QUANTILES):
        noise = _T_QUANTILES[turns - 2] * float(np.std(saved, ddof=1)) / turns**0.5
    else:
        # By rank, so that turns disturbed by other programs do not count.
        low = int((turns - 1.96 * turns**0.5) / 2)
        ranked = np.sort(saved)
        noise = float(max(ranked[turns - 1 - low] - middle[2], middle[2] - ranked[low]))
    return TimeDifference(middle[0], middle[1], round(middle[2], 6), noise, turns)


def measure_interleaved(
    contenders: Sequence[Contender],
    mode: Mode,
    plan: ProfilePlan,
) -> InterleavedTimes:
    """Measure rollouts of several envs in alternation: A B C C B A, and again.

    Each repeat of the plan is up to four turns, which share its steps. The contenders may share
    their base env. A contender that raises is skipped from then on.
    """
    failures: dict[int, str] = {}

    def timed(place: int, steps: int) -> float:
        if place in failures:
            return float("nan")
        env = contenders[place].env
        try:
            if plan.seed is not None:
                torch.manual_seed(plan.seed)
                env.set_seed(plan.seed)
            with rollout_mode(env, mode):
                steps_run, start = 0, plan.clock()
                for chunk in env.iter_rollout(steps, contenders[place].policy):
                    steps_run += chunk.shape[-1]
                if env.main_device.type != "cpu":
                    accelerators.synchronize(env.main_device)
                return (plan.clock() - start) / steps_run / 1000
        except Exception as error:
            failures[place] = str(error) or type(error).__name__
            return float("nan")

    turns: list[FloatArray] = []
    parts = min(max(plan.steps // _MIN_PART_STEPS, 1), _MAX_PARTS)
    steps = plan.steps // parts
    interrupted = False
    with quiet_environment(plan.threads):
        try:
            for place in range(len(contenders)):
                timed(place, max(plan.warmup, 1))
            for turn in range(plan.repeats * parts):
                plan.report_progress("alternating", turn, plan.repeats * parts)
                # In both orders, so that a steady drift adds the same to every contender.
                forward = [timed(place, steps) for place in range(len(contenders))]
                backward = [timed(place, steps) for place in reversed(range(len(contenders)))]
                turns.append((np.array(forward) + np.array(backward[::-1])) / 2)
        except KeyboardInterrupt:
            interrupted = True
    return InterleavedTimes(np.array(turns).reshape(-1, len(contenders)), failures, interrupted)


@dataclass(frozen=True, slots=True)
class MarginalCost(Result):
    """Cost of one stage for the whole chain.

    Args:
        index: Index of the stage, from 0; nested chains are flattened.
        name: Class name.
        own_us: Own time of its calls per step.
        cost: Time that a step saves without the stage. ``None``: it cannot be removed, or was not
            measured in time.
        needed: Why it cannot be removed. ``None``: it can.
    """

    json_entries: ClassVar[Entries] = (
        *(Entry("stage", "index"), "name", "own_us", "needed"),
        *(Entry(name, convert=finite) for name in ("saved_us", "noise_us", "for_neighbors_us")),
        *(Entry("significant", "is_significant"), "turns"),
    )

    index: int
    name: str
    own_us: float
    cost: TimeDifference | None
    needed: str | None = None

    @property
    def for_neighbors_us(self) -> float | None:
        """Cost beyond its own calls; ``None`` if unknown."""
        return None if self.cost is None else self.cost.saved_us - self.own_us

    @property
    def saved_us(self) -> float | None:
        """Time that a step saves without the stage; ``None`` if unknown."""
        return None if self.cost is None else self.cost.saved_us

    @property
    def noise_us(self) -> float | None:
        """Noise of the saved time; ``None`` if unknown."""
        return None if self.cost is None else self.cost.noise_us

    @property
    def is_significant(self) -> bool:
        """True if the saved time exceeds its noise."""
        return self.cost is not None and bool(self.cost.is_significant)

    @property
    def turns(self) -> int:
        """Number of measurements with and without the stage."""
        return 0 if self.cost is None else self.cost.turns


@dataclass(frozen=True, slots=True)
class MarginalCosts(Result):
    """Marginal cost of every stage of a chain.

    Args:
        mode: Mode of the rollouts.
        step_us: Time of a step of the whole chain.
        stages: Costs in the order of the stages.
        error: Why the measurement ended early: ``interrupted``, with the results so far, or the
            error of the whole chain. ``None``: it did not.
    """

    json_entries: ClassVar[Entries] = ("mode", "step_us", "error", "stages")

    mode: Mode
    step_us: float
    stages: tuple[MarginalCost, ...]
    error: str | None = None


def measure_marginal_costs(
    env: EnvBase,
    mode: Mode = "planned",
    plan: ProfilePlan | None = None,
) -> MarginalCosts:
    """Measure the chain with and without each of its stages, in alternation.

    All chains are copies around the same base env, which is reset for each rollout.
    """
    plan = plan or ProfilePlan()
    _, stages = flatten_chain(env)
    whole = copy_with_stages(env, range(len(stages)))
    (own,) = profile_env(whole, [mode], replace(plan, passes=())).modes
    ending, turns = own.error, InterleavedTimes(np.zeros((0, 1)))
    contenders = [Contender(whole, plan.policy)]
    # By stage: index of the chain without it, or why it cannot be removed.
    places: dict[int, int] = {}
    needed: dict[int, str] = {}
    if ending is None:
        for index in range(len(stages)):
            try:
                shorter = copy_with_stages(env, [at for at in range(len(stages)) if at != index])
                _ = shorter.output_spec, shorter.input_spec
            except TdxError as error:
                needed[index] = str(error)
                continue
            places[index] = len(contenders)
            contenders.append(Contender(shorter, plan.policy))
        turns = measure_interleaved(contenders, mode, plan)
        needed |= {at: turns.failures[n] for at, n in places.items() if n in turns.failures}
        ending = "interrupted" if turns.interrupted else turns.failures.get(0)
    has_times = len(turns.step_us) and 0 not in turns.failures
    costs = []
    for index, stage in enumerate(stages):
        # Its own calls, and its share of fused groups.
        own_us = 0.0
        for row in own.rows:
            first, last = row.part.index, max(row.part.upto, row.part.index)
            if row.part.work == "stage" and first <= index <= last:
                own_us += own.step_share_us(row) / (last - first + 1)
        is_measured = has_times and index in places and index not in needed
        cost = turns.difference(0, places[index]) if is_measured else None
        costs.append(MarginalCost(index, type(stage).__name__, own_us, cost, needed.get(index)))
    return MarginalCosts(mode, own.step_us, tuple(costs), ending)


def copy_with_stages(env: EnvBase, chosen: range | list[int]) -> TransformedEnv:
    """Return the base env with copies of some stages around it."""
    base, stages = flatten_chain(env)
    return TransformedEnv(base, Compose(*(stages[index].clone() for index in chosen)))

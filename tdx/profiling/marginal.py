"""Marginal cost: what the chain takes with a stage and without it, neighbours included."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from tdx.core.envs import EnvBase
from tdx.core.plan.forms import flattened
from tdx.core.transformed_env import TransformedEnv
from tdx.core.transforms import Compose
from tdx.errors import TdxError
from tdx.profiling.interleaved import (
    Contender,
    InterleavedTimes,
    TimeDifference,
    measure_interleaved,
)
from tdx.profiling.result import Mode, ModeProfile
from tdx.profiling.run import ProfilePlan, profile_env


@dataclass(frozen=True, slots=True)
class MarginalCost:
    """What one stage costs the whole chain.

    Args:
        index: its place, from 0, with nested chains run on.
        name: its class name.
        own_us: what its own calls take in a step.
        cost: what a step saves without it; ``None`` where it cannot be left out, or where it
            was not measured in time.
        needed: why it cannot be left out; ``None`` where it can.
    """

    index: int
    name: str
    own_us: float
    cost: TimeDifference | None
    needed: str | None = None

    @property
    def for_neighbours_us(self) -> float | None:
        """What it costs beyond its own calls, ``None`` where that is not known."""
        return None if self.cost is None else self.cost.saved_us - self.own_us


@dataclass(frozen=True, slots=True)
class MarginalCosts:
    """The marginal cost of every stage of a chain.

    Args:
        mode: how it was run.
        step_us: what a step of the whole chain takes.
        stages: the stages in order.
        error: why it ended early, if it did: ``interrupted``, with what the turns until then
            say; or what the whole chain raised.
    """

    mode: Mode
    step_us: float
    stages: tuple[MarginalCost, ...]
    error: str | None = None


def measure_marginal_costs(
    env: EnvBase,
    mode: Mode = "planned",
    plan: ProfilePlan | None = None,
) -> MarginalCosts:
    """Measure the chain with and without each of its stages, in turns.

    The env inside is the same for all, and it is reset for each rollout; the chains are copies.

    Args:
        env: the env, with its chain.
        mode: how it runs.
        plan: steps, warm-up, repeats, policy, seed, threads and clock.

    Example:
        >>> from tdx import GymEnv, RewardSum, TransformedEnv
        >>> env = TransformedEnv(GymEnv("Pendulum-v1"), RewardSum())
        >>> found = measure_marginal_costs(env, "planned", ProfilePlan(steps=50, warmup=10, repeats=2))
        >>> [(stage.name, stage.needed) for stage in found.stages]
        [('RewardSum', None)]
    """
    plan = plan or ProfilePlan()
    _, stages = flattened(env)
    whole = copy_with_stages(env, range(len(stages)))
    (own,) = profile_env(whole, [mode], replace(plan, passes=())).modes
    ending, contenders = own.error, _Contenders([whole], {}, {})
    if ending is None:
        contenders = _make_contenders(env, whole, len(stages))
        turns = measure_interleaved(
            [Contender(each, plan.policy) for each in contenders.envs], mode, plan
        )
        ending = "interrupted" if turns.interrupted else turns.failures.get(0)
    else:
        turns = InterleavedTimes(np.zeros((0, 1)))
    found = []
    for index, stage in enumerate(stages):
        place, why = contenders.places.get(index), contenders.needed.get(index)
        if place is not None:
            why = turns.failures.get(place)
        cost = None if place is None or why is not None else _find_cost(turns, place)
        found.append(
            MarginalCost(index, type(stage).__name__, _sum_own_time(own, index), cost, why)
        )
    return MarginalCosts(mode, own.step_us, tuple(found), ending)


@dataclass(frozen=True, slots=True)
class _Contenders:
    """The chain and those without one of its stages.

    Args:
        envs: the whole first.
        places: which of them is the one without a stage.
        needed: why there is none.
    """

    envs: list[EnvBase]
    places: dict[int, int]
    needed: dict[int, str]


def _make_contenders(env: EnvBase, whole: EnvBase, stages: int) -> _Contenders:
    found = _Contenders([whole], {}, {})
    for index in range(stages):
        try:
            shorter = copy_with_stages(env, [each for each in range(stages) if each != index])
            _ = shorter.output_spec, shorter.input_spec
        except TdxError as error:
            found.needed[index] = str(error)
            continue
        found.places[index] = len(found.envs)
        found.envs.append(shorter)
    return found


def _find_cost(turns: InterleavedTimes, place: int) -> TimeDifference | None:
    return turns.difference(0, place) if len(turns.step_us) and 0 not in turns.failures else None


def _sum_own_time(profile: ModeProfile, index: int) -> float:
    """What the calls of a stage take in a step; its share of those of which it is a part."""
    found = 0.0
    for row in profile.rows:
        part = row.part
        if part.work == "stage" and part.index <= index <= max(part.upto, part.index):
            found += profile.step_share_us(row) / (max(part.upto, part.index) - part.index + 1)
    return found


def copy_with_stages(env: EnvBase, chosen: range | list[int]) -> TransformedEnv:
    """The env before all chains with copies of some of its stages around it.

    Args:
        env: the env, with its chain.
        chosen: the places of the stages.
    """
    base, stages = flattened(env)
    return TransformedEnv(base, Compose(*(stages[index].clone() for index in chosen)))

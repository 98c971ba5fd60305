"""Marginal costs: the time of the chain with and without a stage, effects on neighbors included."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from tdx.core.chain import flatten_chain
from tdx.core.envs import EnvBase
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
    """Cost of one stage for the whole chain.

    Args:
        index: Index of the stage, from 0; nested chains are flattened.
        name: Class name.
        own_us: Own time of its calls per step.
        cost: Time that a step saves without the stage. ``None``: it cannot be removed, or was not
            measured in time.
        needed: Why it cannot be removed. ``None``: it can.
    """

    index: int
    name: str
    own_us: float
    cost: TimeDifference | None
    needed: str | None = None

    @property
    def for_neighbors_us(self) -> float | None:
        """Cost beyond its own calls; ``None`` if unknown."""
        return None if self.cost is None else self.cost.saved_us - self.own_us


@dataclass(frozen=True, slots=True)
class MarginalCosts:
    """Marginal cost of every stage of a chain.

    Args:
        mode: Mode of the rollouts.
        step_us: Time of a step of the whole chain.
        stages: Costs in the order of the stages.
        error: Why the measurement ended early: ``interrupted``, with the results so far, or the
            error of the whole chain. ``None``: it did not.
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
    """Measure the chain with and without each of its stages, in alternation.

    All chains are copies around the same base env, which is reset for each rollout.

    Args:
        env: Env with its chain.
        mode: Mode of the rollouts.
        plan: Steps, warm-up, repeats, policy, seed, threads and clock.

    Example:
        >>> from tdx import GymEnv, RewardSum, TransformedEnv
        >>> env = TransformedEnv(GymEnv("Pendulum-v1"), RewardSum())
        >>> plan = ProfilePlan(steps=50, warmup=10, repeats=2)
        >>> found = measure_marginal_costs(env, "planned", plan)
        >>> [(stage.name, stage.needed) for stage in found.stages]
        [('RewardSum', None)]
    """
    plan = plan or ProfilePlan()
    _, stages = flatten_chain(env)
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
    """The whole chain, and the chains without one stage.

    Args:
        envs: Envs, the whole chain first.
        places: Index in ``envs`` of the chain without a stage, by stage.
        needed: Why a stage cannot be removed, by stage.
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
    """Return the own time of a stage per step, including its share of compiled groups."""
    found = 0.0
    for row in profile.rows:
        part = row.part
        if part.work == "stage" and part.index <= index <= max(part.upto, part.index):
            found += profile.step_share_us(row) / (max(part.upto, part.index) - part.index + 1)
    return found


def copy_with_stages(env: EnvBase, chosen: range | list[int]) -> TransformedEnv:
    """Return the base env with copies of some stages around it.

    Args:
        env: Env with its chain.
        chosen: Indices of the stages.
    """
    base, stages = flatten_chain(env)
    return TransformedEnv(base, Compose(*(stages[index].clone() for index in chosen)))

"""What bounds a rollout: the cost of each part, and of each kind of part, in the mean step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tdx.core.meter import SETUP
from tdx.profiling.result import ModeProfile, Row

ENGINE = "tdx itself"
_KINDS = {
    "env": "env",
    "wrapper": "wrappers",
    "stage": "stages",
    "policy": "policy",
    "engine": ENGINE,
}


@dataclass(frozen=True, slots=True)
class Cost:
    """Time of a part, or of a kind of part, in the mean step; calls of all lanes together.

    Args:
        name: Label of the part, or name of the kind. The work of tdx is one part.
        step_us: Time per step, in µs.
        share: Share of the whole step, from 0 to 1.
    """

    name: str
    step_us: float
    share: float


def list_part_costs(mode: ModeProfile) -> list[Cost]:
    """Return the cost of each part, largest first.

    The calls of a stage are one part. Of a stage whose steps are fused with those of its neighbors,
    the other calls are named by their kind: ``1 GrayScale (reset)``.

    Example:
        >>> from tdx import GymEnv, RewardSum, TransformedEnv
        >>> from tdx.profiling.run import ProfilePlan, profile_env
        >>> env = TransformedEnv(GymEnv("Pendulum-v1"), RewardSum())
        >>> plan = ProfilePlan(steps=20, warmup=0, repeats=2, passes=())
        >>> (mode,) = profile_env(env, ["eager"], plan).modes
        >>> sorted(cost.name for cost in list_part_costs(mode))
        ['0 RewardSum', 'env Pendulum-v1', 'policy random', 'tdx itself']
    """
    fused = {
        index
        for row in mode.rows
        if row.part.work == "stage" and row.part.upto >= 0
        for index in range(row.part.index, row.part.upto + 1)
    }

    def name_of(row: Row) -> str:
        part = row.part
        if part.work == "engine":
            return ENGINE
        if part.upto < 0 and part.index in fused:
            # The steps of the stage are in the row of the group.
            return f"{part.label} ({part.lane})"
        return part.label

    return _sum_rows(mode, name_of)


def list_kind_costs(mode: ModeProfile) -> list[Cost]:
    """Return the cost of env, wrappers, stages, policy and tdx itself, largest first."""
    return _sum_rows(mode, lambda row: _KINDS[row.part.work])


def _sum_rows(mode: ModeProfile, name_of: Callable[[Row], str]) -> list[Cost]:
    rows: dict[str, list[Row]] = {}
    for row in mode.rows:
        rows.setdefault(name_of(row), []).append(row)
    costs = [
        Cost(name, sum(map(mode.step_share_us, group)), sum(map(mode.share, group)))
        for name, group in rows.items()
    ]
    return sorted(costs, key=lambda cost: -cost.step_us)


def suggest_measurements(mode: ModeProfile) -> Sequence[str]:
    """Return what to try next for the kind of part that takes most of the time.

    A measurement, not a promise: whether it helps depends on the env and the machine. Blocks of the
    caller's own code have no such options.
    """
    kinds = list_kind_costs(mode)
    if mode.mode == "observed" or not kinds:
        return ()
    more_envs = "more envs in each step: --sweep num_envs=1,8 measures it"
    match kinds[0].name:
        case "env" | "policy":
            return (more_envs,)
        case "stages":
            return (
                "fewer or cheaper stages: --advice tries changes, --marginal leaves out each stage",
            )
        case "wrappers":
            return ()
    if mode.mode == "eager":
        return ("running the chain once per chunk: --mode eager,planned compares both",)
    setup = sum(mode.share(row) for row in mode.rows if row.part == SETUP)
    if setup > kinds[0].share / 2:
        return ("longer rollouts, which are set up less often: more --steps",)
    return (more_envs,)

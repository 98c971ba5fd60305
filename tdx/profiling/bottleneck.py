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

    The work of tdx is one part. ``median_us`` is the time of a step in which each call takes its
    median time, and the most expensive row comes first.
    """

    name: str
    step_us: float
    median_us: float
    share: float
    rows: tuple[Row, ...]


def list_part_costs(mode: ModeProfile) -> list[Cost]:
    """Return the cost of each part, largest first.

    The calls of a stage are one part. A stage whose steps are fused with those of its neighbors
    belongs to the group with all its calls.
    """
    groups = {
        index: row.part.label
        for row in mode.rows
        if row.part.work == "stage" and row.part.upto >= 0
        for index in range(row.part.index, row.part.upto + 1)
    }

    def key_of(row: Row) -> tuple[str, int]:
        part = row.part
        if part.work == "engine":
            return ENGINE, -1
        if part.work == "stage":
            return groups.get(part.index, part.label), -1
        # Wrappers of one class have equal labels.
        return part.label, part.index

    return _sum_rows(mode, key_of)


def list_kind_costs(mode: ModeProfile) -> list[Cost]:
    """Return the cost of env, wrappers, stages, policy and tdx itself, largest first."""
    return _sum_rows(mode, lambda row: (_KINDS[row.part.work], -1))


def _sum_rows(mode: ModeProfile, key_of: Callable[[Row], tuple[str, int]]) -> list[Cost]:
    rows: dict[tuple[str, int], list[Row]] = {}
    for row in mode.rows:
        if len(row.times_ns):
            rows.setdefault(key_of(row), []).append(row)
    steps = int(mode.steps.sum())
    costs = [
        Cost(
            name,
            sum(map(mode.step_share_us, group)),
            sum(row.statistics.p50 * len(row.times_ns) for row in group) / steps if steps else 0.0,
            sum(map(mode.share, group)),
            tuple(sorted(group, key=lambda row: -row.total_ns)),
        )
        for (name, _), group in rows.items()
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

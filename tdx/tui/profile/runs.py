"""Measurements one after the other: what changed in the chain in between, and what that saved."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from tdx.pipeline.editing.draft import Draft
from tdx.pipeline.editing.editor import describe_changes
from tdx.tui.profile.requests import CostRow, Costs, ModeCosts

MOST_KEPT = 50
FLOOR = 0.01
"""A difference of less than this share of the step is none."""
Key = tuple[str, str, str]


@dataclass(frozen=True, slots=True)
class Run:
    """One measurement.

    Args:
        number: from 1.
        draft: the chain that was measured.
        costs: what was found.
        change: what was edited since the run before.
        ended: why it ended early; none where it did not.
    """

    number: int
    draft: Draft
    costs: Costs
    change: str
    ended: str | None = None

    def key(self, row: CostRow) -> Key:
        """What a row is called in every run: a stage has its number, wherever it is moved."""
        if row.work != "stage":
            return (row.work, "" if row.work == "env" else row.name, row.lane)
        positions = self.draft.positions
        last = max(row.index, row.upto)
        places = positions[row.index : last + 1]
        numbers = ",".join(str(self.draft.stages[place].number) for place in places)
        return ("stage", numbers, row.lane)


@dataclass(frozen=True, slots=True)
class Delta:
    """How much longer a row takes than in another run.

    Args:
        before_us: of a step, in the other run; none where the row is new.
        after_us: in this one; none where the row is gone.
        floor_us: below which it is noise.
    """

    before_us: float | None
    after_us: float | None
    floor_us: float

    @property
    def us(self) -> float:
        """How much longer."""
        return (self.after_us or 0.0) - (self.before_us or 0.0)

    @property
    def kind(self) -> Literal["new", "gone", "same", "slower", "faster"]:
        """What has become of it."""
        if self.before_us is None:
            return "new"
        if self.after_us is None:
            return "gone"
        if abs(self.us) <= self.floor_us:
            return "same"
        return "slower" if self.us > 0 else "faster"


@dataclass(frozen=True, slots=True)
class Comparison:
    """A run beside another one, in one mode.

    Args:
        step: of the whole step.
        rows: by the row's key.
        gone: rows that only the other run has.
    """

    step: Delta
    rows: dict[Key, Delta]
    gone: tuple[CostRow, ...]


def compared(run: Run, other: Run, mode: str) -> Comparison | None:
    """A run beside another one; none where one of them has nothing in this mode."""
    after, before = run.costs.mode(mode), other.costs.mode(mode)
    if after is None or before is None or not after.steps or not before.steps:
        return None
    noise = max(after.noise, before.noise, FLOOR)
    new = {run.key(row): row for row in after.rows}
    old = {other.key(row): row for row in before.rows}
    rows = {
        key: Delta(
            old[key].step_us if key in old else None,
            new[key].step_us if key in new else None,
            _row_floor(noise, before, old.get(key), new.get(key)),
        )
        for key in {**old, **new}
    }
    step = Delta(before.step_us, after.step_us, noise * before.step_us)
    return Comparison(step, rows, tuple(row for key, row in old.items() if key not in new))


def _row_floor(noise: float, before: ModeCosts, *rows: CostRow | None) -> float:
    """Rows are as noisy as the step, or more where few calls differ much."""
    there = [row for row in rows if row is not None]
    largest = max((row.step_us for row in there), default=0.0)
    error = sum(row.error_us**2 for row in there) ** 0.5
    return max(noise * largest, error, FLOOR / 4 * before.step_us)


class History:
    """The runs of this session, the last one last."""

    def __init__(self) -> None:
        self._runs: list[Run] = []
        self._count = 0

    @property
    def runs(self) -> Sequence[Run]:
        """Those that are kept."""
        return tuple(self._runs)

    def add(self, draft: Draft, costs: Costs, ended: str | None = None) -> Run:
        """Put a run behind the others.

        Args:
            draft: the chain that was measured.
            costs: what was found.
            ended: why it ended early; none where it did not.
        """
        self._count += 1
        change = describe_changes(self._runs[-1].draft, draft) if self._runs else "first run"
        costs = costs.numbered(draft.positions)
        run = Run(self._count, draft, costs, "as before" if change == "nothing" else change, ended)
        self._runs.append(run)
        del self._runs[:-MOST_KEPT]
        return run

    def before(self, run: Run, mode: str) -> Run | None:
        """The last run before this one that was measured in the same mode."""
        earlier = [each for each in self._runs if each.number < run.number]
        return next((each for each in reversed(earlier) if _has(each, mode)), None)


def _has(run: Run, mode: str) -> bool:
    found = run.costs.mode(mode)
    return found is not None and found.steps > 0

"""Measurement runs: their history, comparison and descriptions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from textual.content import Content

from tdx.pipeline.draft import Draft
from tdx.pipeline.editing.editor import describe_changes
from tdx.tui.profile.messages import MODES, CostRow, Costs, ModeCosts, ModeName
from tdx.tui.profile.numbers import format_delta, format_micros, format_percent

MAX_RUNS = 50
NOISE_FLOOR = 0.01
"""Smaller differences, as a share of the step, count as equal."""
RowKey = tuple[str, str, str]


@dataclass(frozen=True, slots=True)
class ProfileRun:
    """A measurement.

    Args:
        number: Number, from 1.
        draft: Chain that was measured.
        costs: Result.
        change: Edits since the previous run.
        ended: Why it ended early. ``None``: it did not.
    """

    number: int
    draft: Draft
    costs: Costs
    change: str
    ended: str | None = None

    def key(self, row: CostRow) -> RowKey:
        """Return the identity of a row across runs; a stage keeps its number when it is moved."""
        if row.work != "stage":
            return (row.work, "" if row.work == "env" else row.name, row.lane)
        positions = self.draft.positions
        last = max(row.index, row.upto)
        places = positions[row.index : last + 1]
        numbers = ",".join(str(self.draft.stages[place].number) for place in places)
        # The wrappers of another library are not known before the first inspection.
        return ("stage", numbers or str(row.index), row.lane)


ModeSelection = Literal["planned", "eager", "both"]
"""A mode, or ``both`` side by side."""
MODE_SELECTIONS: tuple[ModeSelection, ...] = ("planned", "eager", "both")
SELECTION_TITLES = {"both": "eager+planned"}
"""Titles of selections that are not a mode."""


def modes_for(wanted: ModeSelection) -> tuple[ModeName, ...]:
    """Return the modes to measure."""
    return MODES if wanted == "both" else (wanted,)


def displayed_modes(run: ProfileRun, wanted: ModeSelection) -> list[ModeCosts]:
    """Return the selected modes that a run has, or the one it has."""
    selected = [run.costs.mode(name) for name in modes_for(wanted)]
    existing = [mode for mode in selected if mode is not None]
    return existing or list(run.costs.modes[:1])


def displayed_mode(run: ProfileRun, wanted: ModeSelection) -> ModeCosts | None:
    """Return ``planned`` if it is displayed, else the first displayed mode."""
    existing = displayed_modes(run, wanted)
    first = next(iter(existing), None)
    return next((mode for mode in existing if mode.mode == "planned"), first)


def is_side_by_side(run: ProfileRun, wanted: ModeSelection) -> bool:
    """Return True if several modes are displayed."""
    return len(displayed_modes(run, wanted)) > 1


@dataclass(frozen=True, slots=True)
class Delta:
    """Difference of a row to another run.

    Args:
        before_us: Time per step in the other run. ``None``: the row is new.
        after_us: Time per step in this run. ``None``: the row was removed.
        floor_us: Smaller differences are noise.
    """

    before_us: float | None
    after_us: float | None
    floor_us: float

    @property
    def us(self) -> float:
        """Difference in µs."""
        return (self.after_us or 0.0) - (self.before_us or 0.0)

    @property
    def kind(self) -> Literal["new", "removed", "same", "slower", "faster"]:
        """Kind of the difference."""
        if self.before_us is None:
            return "new"
        if self.after_us is None:
            return "removed"
        if abs(self.us) <= self.floor_us:
            return "same"
        return "slower" if self.us > 0 else "faster"


@dataclass(frozen=True, slots=True)
class Comparison:
    """Comparison of two runs in one mode.

    Args:
        step: Difference of the whole step.
        rows: Differences by row.
        removed: Rows that only the other run has.
    """

    step: Delta
    rows: dict[RowKey, Delta]
    removed: tuple[CostRow, ...]


def compare_runs(run: ProfileRun, other: ProfileRun, mode: str) -> Comparison | None:
    """Compare two runs. ``None``: one of them was not measured in this mode."""
    after, before = run.costs.mode(mode), other.costs.mode(mode)
    if after is None or before is None or not after.steps or not before.steps:
        return None
    noise = max(after.noise, before.noise, NOISE_FLOOR)
    new = {run.key(row): row for row in after.rows}
    old = {other.key(row): row for row in before.rows}
    rows: dict[RowKey, Delta] = {}
    for key in {**old, **new}:
        sides = [row for row in (old.get(key), new.get(key)) if row is not None]
        # The noise of a row is that of the step, or more if its calls vary a lot.
        floor = max(
            noise * max(row.step_us for row in sides),
            sum(row.error_us**2 for row in sides) ** 0.5,
            NOISE_FLOOR / 4 * before.step_us,
        )
        rows[key] = Delta(
            old[key].step_us if key in old else None,
            new[key].step_us if key in new else None,
            floor,
        )
    step = Delta(before.step_us, after.step_us, noise * before.step_us)
    return Comparison(step, rows, tuple(row for key, row in old.items() if key not in new))


class RunHistory:
    """Runs of this session, the latest last."""

    def __init__(self) -> None:
        self._runs: list[ProfileRun] = []
        self._count = 0

    @property
    def runs(self) -> Sequence[ProfileRun]:
        """All runs."""
        return tuple(self._runs)

    def add(self, draft: Draft, costs: Costs, ended: str | None = None) -> ProfileRun:
        """Append a run.

        Args:
            draft: Chain that was measured.
            costs: Result.
            ended: Why it ended early. ``None``: it did not.
        """
        self._count += 1
        change = describe_changes(self._runs[-1].draft, draft) if self._runs else "first run"
        # The rows have the numbers of the chain pane.
        modes = tuple(
            replace(mode, rows=tuple(replace(row, numbers=draft.positions) for row in mode.rows))
            for mode in costs.modes
        )
        costs = replace(costs, modes=modes)
        run = ProfileRun(
            self._count, draft, costs, "no changes" if change == "nothing" else change, ended
        )
        self._runs.append(run)
        del self._runs[:-MAX_RUNS]
        return run

    def previous(self, run: ProfileRun, mode: str) -> ProfileRun | None:
        """Return the latest earlier run in the same mode."""
        for earlier in reversed(self._runs):
            costs = earlier.costs.mode(mode)
            if earlier.number < run.number and costs is not None and costs.steps > 0:
                return earlier
        return None


_MAX_NAMES = 3
_NOISE_STYLES = {"quiet": "$text-success", "noisy": "$text-error", "unknown": "$text-warning"}
_DELTA_STYLES = {"slower": "$text-error", "faster": "$text-success", "same": "dim"}


def run_summary(
    run: ProfileRun, wanted: ModeSelection, other: ProfileRun | None, now: Draft, low: bool
) -> Content:
    """Return the summary of a run: time per step, noise and differences.

    Args:
        run: Run that is shown.
        wanted: Selected modes.
        other: Run to compare with.
        now: Current chain.
        low: True if there is little room.
    """
    mode = displayed_mode(run, wanted)
    head: list[Content | str | tuple[str, str]] = [(f"#{run.number} {run.change}", "bold")]
    edited = describe_changes(run.draft, now)
    if edited != "nothing":
        head += [("  edited: ", "dim"), (edited, "$text-accent")]
    parts = [Content.assemble(*head)]
    if mode is not None and mode.steps:
        parts += _step_summary(run, mode, wanted, other, low)
    if run.ended is not None:
        parts.append(Content.styled(f"✕ {run.ended}", "$text-error"))
    if mode is not None:
        waiting = list(dict.fromkeys(row.label for row in mode.rows if row.syncs))
        if waiting:
            left = len(waiting) - _MAX_NAMES
            where = ", ".join([*waiting[:_MAX_NAMES], *([f"{left} more"] if left > 0 else [])])
            text = f"hidden syncs: the host waits for the GPU in {where}"
            parts.append(Content.styled(text, "$text-warning"))
        parts += [Content.styled(note, "$text-warning") for note in mode.notes]
    return Content("\n").join(parts)


def run_text(run: ProfileRun, wanted: ModeSelection, other: ProfileRun | None) -> str:
    """Return a run on one line: ``#2 remove CatFrames: 46.5 µs/step, -7.05 µs (-13 %) to #1``."""
    mode = displayed_mode(run, wanted)
    parts = []
    if mode is not None and mode.steps:
        parts.append(f"{format_micros(mode.step_us)} µs/step")
        comparison = None if other is None else compare_runs(run, other, mode.mode)
        if comparison is not None and other is not None:
            parts.append(delta_text(comparison.step, other).plain)
    if run.ended is not None:
        parts.append(run.ended)
    return f"#{run.number} {run.change}: {', '.join(part for part in parts if part)}"


def _step_summary(
    run: ProfileRun, mode: ModeCosts, wanted: ModeSelection, other: ProfileRun | None, low: bool
) -> list[Content]:
    has_several_modes = len(displayed_modes(run, wanted)) > 1
    modes = [mode for mode in displayed_modes(run, wanted) if mode.steps]
    parts: list[Content | str | tuple[str, str]] = []
    if len(modes) < 2:
        parts.append((f"{format_micros(mode.step_us)} µs/step", "bold"))
    else:
        times = []
        for other_mode in modes:
            ratio = other_mode.step_us / modes[0].step_us - 1
            saved = "" if other_mode is modes[0] else f" ({format_percent(ratio)})"
            tone = "" if not saved else "$text-success" if ratio < 0 else "$text-error"
            time = f"{other_mode.mode} {format_micros(other_mode.step_us)}"
            times.append(Content.assemble(time, (saved, tone)))
        parts += [Content(", ").join(times), " µs/step"]
    comparison = None if other is None else compare_runs(run, other, mode.mode)
    if comparison is not None and other is not None and not has_several_modes:
        parts += ["  ", delta_text(comparison.step, other, low)]
    style = _NOISE_STYLES.get(mode.judgement, "dim")
    if low:
        preempted = "" if mode.preemption is None else "  preempted"
        noise = f"±{mode.noise:.0%}"
        return [Content.assemble(*parts, "  ", (noise, style), (preempted, "$text-error"))]
    rate = f"{mode.mode} · {mode.frames_per_second:,.0f} frames/s · "
    noise = f"±{mode.noise:.1%} {mode.judgement}"
    lines = [Content.assemble(*parts), Content.assemble((rate, "dim"), (noise, style))]
    if mode.judgement in ("noisy", "unknown"):
        lines.append(Content.styled(mode.noise_text, style))
    if mode.preemption is not None:
        lines.append(Content.styled(f"preempted: {mode.preemption}", "$text-error"))
    return lines


def delta_text(delta: Delta, other: ProfileRun, low: bool = False) -> Content:
    """Return the difference of a step to another run: ``-12.1 µs (-9 %) to #2``."""
    if not delta.before_us:
        return Content("")
    if delta.kind == "same":
        within = "" if low else ", within the noise"
        return Content.styled(f"≈ same as #{other.number}{within}", "dim")
    share = format_percent(delta.us / delta.before_us)
    text = f"{format_delta(delta.us)} µs ({share}) to #{other.number}"
    return Content.styled(text, f"bold {_DELTA_STYLES[delta.kind]}")


def history_line(
    run: ProfileRun, before: ProfileRun | None, wanted: ModeSelection, marks: str
) -> Content:
    """Return the line of a run in the list of runs."""
    mode = displayed_mode(run, wanted)
    step = f"{format_micros(mode.step_us):>7}" if mode is not None and mode.steps else "      –"
    parts: list[Content | str | tuple[str, str]] = [f"{marks}#{run.number:<3}", (step, "bold"), " "]
    comparison = None
    if before is not None and mode is not None:
        comparison = compare_runs(run, before, mode.mode)
    if comparison is not None and comparison.step.before_us:
        share = format_percent(comparison.step.us / comparison.step.before_us)
        same = comparison.step.kind == "same"
        parts.append((f"{'≈' if same else share:>6} ", _DELTA_STYLES.get(comparison.step.kind, "")))
    else:
        parts.append(" " * 7)
    parts.append((run.change, "" if run.ended is None else "$text-error"))
    if run.ended is not None:
        parts.append((f"  {run.ended}", "$text-error"))
    return Content.assemble(*parts)


WELCOME = """Press [b]r[/b] to measure what each part of a rollout costs.

Then edit the chain and measure again: each row shows the difference to the previous run."""
STACK_WELCOME = """Press [b]r[/b] to measure what each stage costs.

Then edit the code, press [b]Ctrl+L[/b] to import it again, and measure again: each row shows the \
difference to the previous run."""

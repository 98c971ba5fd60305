"""Measurement runs: their history, comparison and descriptions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from textual.content import Content

from tdx.pipeline.draft import Draft
from tdx.pipeline.editing.editor import describe_changes
from tdx.pipeline.model import StackFacts
from tdx.profiling.plain import MIN_SHARE, MODES, RolloutMode, are_apart, mean_shift
from tdx.tui.profile.messages import CostRow, Costs, ModeCosts
from tdx.tui.profile.numbers import format_count, format_duration, format_percent

MAX_RUNS = 50
RowKey = tuple[str, str, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class ProfileRun:
    """A measurement."""

    number: int
    draft: Draft
    costs: Costs
    change: str  # edits since the previous run
    ended: str | None = None  # why it ended early; ``None``: it did not

    def key(self, row: CostRow) -> RowKey:
        """Return the identity of a row across runs; a stage keeps its number when it is moved."""
        if row.work != "stage":
            return (row.work, "" if row.work == "env" else row.name, ())
        places = self.draft.positions[row.index : max(row.index, row.upto) + 1]
        # The wrappers of another library are not known before the first inspection.
        return ("stage", "", tuple(self.draft.stages[at].number for at in places) or (row.index,))


ModeSelection = Literal["planned", "eager", "both"]
"""A mode, or ``both`` side by side."""
MODE_SELECTIONS: tuple[ModeSelection, ...] = ("planned", "eager", "both")
SELECTION_TITLES = {"both": "eager+planned"}
"""Titles of selections that are not a mode."""


def modes_for(wanted: ModeSelection) -> tuple[RolloutMode, ...]:
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


@dataclass(frozen=True, slots=True)
class Delta:
    """Difference of a row to another measurement."""

    # Time per step in the other measurement; ``None``: it does not have the row.
    before_us: float | None
    after_us: float | None  # time per step in this measurement; ``None``: it does not have the row
    # Kind of the difference. ``regrouped``: the stage was measured together with others in one
    # of them; ``unknown``: one repeat does not show the noise.
    kind: Literal["new", "removed", "regrouped", "unknown", "same", "slower", "faster"]

    @property
    def us(self) -> float:
        """Difference in µs."""
        return (self.after_us or 0.0) - (self.before_us or 0.0)

    @property
    def ratio(self) -> float:
        """Relative difference."""
        return self.us / self.before_us if self.before_us else 0.0


@dataclass(frozen=True, slots=True)
class Comparison:
    """Comparison of two measurements."""

    before: str
    after: str
    step: Delta
    rows: dict[RowKey, Delta]
    removed: dict[RowKey, CostRow]
    by_medians: bool = False  # true if other programs interrupted one of them

    @property
    def text(self) -> Content:
        """Difference of the whole step in words."""
        kind, ratio = self.step.kind, self.step.ratio
        if kind == "unknown":
            return Content.styled(f"one repeat is not compared with {self.before}", "dim")
        if kind == "same":
            return Content.styled(f"the same as {self.before} within the noise", "dim")
        more = "more" if ratio > 0 else "less"
        style = f"bold {_DELTA_STYLES[kind]}"
        text = f"{abs(ratio):.0%} {more} time than {self.before}"
        return Content.styled(f"{text}, by medians" if self.by_medians else text, style)


def compare_runs(
    run: ProfileRun, wanted: ModeSelection, other: ProfileRun | None
) -> Comparison | None:
    """Compare the displayed mode with the other displayed mode, or with another run, if any.

    As in ``tdx profile --baseline``, only a difference between the repeats that is not tiny is a
    change. The times are medians if other programs interrupted one of the runs.
    """
    after = displayed_mode(run, wanted)
    modes = displayed_modes(run, wanted)
    if after is None:
        return None
    if len(modes) > 1:
        other, before, names = run, modes[0], (modes[0].mode, after.mode)
    elif other is not None and (same := other.costs.mode(after.mode)) is not None:
        before, names = same, (f"#{other.number}", f"#{run.number}")
    else:
        return None
    if not after.steps or not before.steps:
        return None
    by_medians = before.preemption is not None or after.preemption is not None
    least_us = MIN_SHARE * min(before.repeats_us, default=before.step_us)

    def total_us(rows: Iterable[CostRow]) -> float:
        return sum(row.median_us if by_medians else row.step_us for row in rows)

    def difference(one: Sequence[Sequence[float]], two: Sequence[float], us: Delta) -> Delta:
        sums = [sum(repeat) for repeat in zip(*one, strict=True)]
        if min(len(sums), len(two)) < 2:
            return us
        # One interrupted repeat does not make a tiny difference large, and medians agree with it.
        shifts = [mean_shift(sums, two), *([us.us] if by_medians else [])]
        if min(shifts) >= least_us and are_apart(sums, two):
            return replace(us, kind="slower")
        is_faster = max(shifts) <= -least_us and are_apart(sums, two)
        return replace(us, kind="faster" if is_faster else "same")

    new = {run.key(row): row for row in after.rows}
    old = {other.key(row): row for row in before.rows}
    left = {run.draft.stages[place].number for place in run.draft.positions}
    deltas: dict[RowKey, Delta] = {}
    removed = dict(old)
    for key, row in new.items():
        # A fused group is compared with the sum of its stages.
        keys = [
            candidate
            for candidate in old
            if candidate == key
            or (set(candidate[2]) & left and set(candidate[2]) & left <= set(key[2]))
        ]
        if keys:
            parts = [removed.pop(candidate) for candidate in keys if candidate in removed]
            delta = Delta(total_us(parts), total_us([row]), "unknown")
            deltas[key] = difference([part.repeats_us for part in parts], row.repeats_us, delta)
        else:
            is_in_group = any(set(candidate[2]) & set(key[2]) for candidate in old)
            deltas[key] = Delta(None, total_us([row]), "regrouped" if is_in_group else "new")
    for key, row in removed.items():
        is_in_group = any(set(candidate[2]) & set(key[2]) for candidate in new)
        deltas[key] = Delta(total_us([row]), None, "regrouped" if is_in_group else "removed")
    step = Delta(total_us(before.rows), total_us(after.rows), "unknown")
    step = difference([before.repeats_us], after.repeats_us, step)
    return Comparison(*names, step, deltas, removed, by_medians)


class RunHistory:
    """Runs of this session, the latest last."""

    def __init__(self) -> None:
        self.runs: list[ProfileRun] = []
        self._count = 0

    def add(self, draft: Draft, costs: Costs, ended: str | None = None) -> ProfileRun:
        """Append a run."""
        self._count += 1
        change = describe_changes(self.runs[-1].draft, draft) if self.runs else "first run"
        # The rows have the numbers of the chain pane.
        modes = tuple(
            replace(mode, rows=tuple(replace(row, numbers=draft.positions) for row in mode.rows))
            for mode in costs.modes
        )
        costs = replace(costs, modes=modes)
        run = ProfileRun(
            self._count, draft, costs, "no changes" if change == "nothing" else change, ended
        )
        self.runs.append(run)
        del self.runs[:-MAX_RUNS]
        return run

    def previous(self, run: ProfileRun, mode: str) -> ProfileRun | None:
        """Return the latest earlier run in the same mode."""
        for earlier in reversed(self.runs):
            costs = earlier.costs.mode(mode)
            if earlier.number < run.number and costs is not None and costs.steps > 0:
                return earlier
        return None


_MAX_NAMES = 3
_NOISE_STYLES = {"quiet": "$text-success", "noisy": "$text-error", "unknown": "$text-warning"}
_DELTA_STYLES = {"slower": "$text-error", "faster": "$text-success"}


def run_summary(
    run: ProfileRun,
    wanted: ModeSelection,
    other: ProfileRun | None,
    now: Draft,
    *,
    low: bool,
    tiny: bool,
) -> Content:
    """Return the summary of a run: time per step, difference and noise."""
    mode = displayed_mode(run, wanted)
    head: list[Content | str | tuple[str, str]] = [(f"#{run.number} {run.change}", "bold")]
    edited = describe_changes(run.draft, now)
    if edited != "nothing":
        head += [("  edited: ", "dim"), (edited, "$text-accent")]
    parts = [Content.assemble(*head)]
    if mode is not None and mode.steps:
        comparison = compare_runs(run, wanted, other)
        versus = Content("")
        if comparison is not None:
            versus = Content.assemble(": ", comparison.text)
        time = (f"{format_duration(mode.step_us)} per step", "bold")
        rate = (f", {format_count(mode.frames_per_second)} frames/s, {mode.mode}", "dim")
        style = _NOISE_STYLES.get(mode.judgement, "dim")
        if low:
            noise = (f"  ±{mode.noise:.1%} {mode.judgement}", style)
            # A tiny table has no room for them before the pane is expanded.
            advice = "z shows medians" if tiny else "compare medians"
            preempted = (f"  preempted: {advice}" if mode.preemption else "", "$text-error")
            parts = [Content.assemble(*head, "  ", time, versus, noise, preempted)]
        else:
            parts.append(Content.assemble(time, rate, versus))
            parts.append(Content.styled(f"noise: {mode.noise_text}", style))
            if mode.preemption is not None:
                parts.append(Content.styled(f"preempted: {mode.preemption}", "$text-error"))
    if run.ended is not None:
        parts.append(Content.styled(f"✕ {run.ended}", "$text-error"))
    if mode is not None:
        waiting = list(dict.fromkeys(row.label for row in mode.rows if row.syncs))
        if waiting:
            left = len(waiting) - _MAX_NAMES
            where = ", ".join([*waiting[:_MAX_NAMES], *([f"{left} more"] if left > 0 else [])])
            text = f"hidden syncs: the host waits for the GPU in {where}"
            parts.append(Content.styled(text, "$text-warning"))
        parts += [Content.styled(line, "dim") for line in (() if low else mode.device)]
        parts += [Content.styled(note, "$text-warning") for note in mode.notes]
    return Content("\n").join(parts)


def run_text(run: ProfileRun, wanted: ModeSelection, other: ProfileRun | None) -> str:
    """Return a run on one line: ``#2 remove CatFrames: 46.5 µs per step, …``."""
    mode = displayed_mode(run, wanted)
    parts = []
    if mode is not None and mode.steps:
        parts.append(f"{format_duration(mode.step_us)} per step")
        comparison = compare_runs(run, wanted, other)
        if comparison is not None:
            parts.append(comparison.text.plain)
    if run.ended is not None:
        parts.append(run.ended)
    return f"#{run.number} {run.change}: {', '.join(parts)}"


def history_line(
    run: ProfileRun, before: ProfileRun | None, wanted: ModeSelection, marks: str
) -> Content:
    """Return the line of a run in the list of runs."""
    mode = displayed_mode(run, wanted)
    step = format_duration(mode.step_us) if mode is not None and mode.steps else "–"
    comparison = compare_runs(run, wanted, before)
    change: Content | str = ""
    if comparison is not None:
        kind, ratio = comparison.step.kind, comparison.step.ratio
        text = {"same": "≈", "unknown": "?"}.get(kind) or format_percent(ratio)
        change = Content.styled(text.rjust(5), _DELTA_STYLES.get(kind, ""))
    return Content.assemble(
        f"{marks}#{run.number:<3}",
        (step.rjust(8), "bold"),
        "  ",
        change or " " * 5,
        "  ",
        (run.change, "" if run.ended is None else "$text-error"),
        (f"  {run.ended}" if run.ended else "", "$text-error"),
    )


_WELCOME = """Press [b]r[/b] to measure what each part of a rollout costs.

Then edit the chain and measure again: each row shows the difference to the previous run."""
_STACK_WELCOME = "Press [b]r[/b] to measure what each stage costs."
_CODE_WELCOME = f"""{_STACK_WELCOME}

Then edit the code, press [b]Ctrl+L[/b] to import it again, and measure again: each row shows the \
difference to the previous run."""


def welcome_text(stack: StackFacts | None) -> str:
    """Return what the tab says before the first run."""
    if stack is None:
        return _WELCOME
    return _STACK_WELCOME if stack.is_data else _CODE_WELCOME

"""Measurement runs: their history, comparison and descriptions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from textual import on
from textual.content import Content
from textual.message import Message
from textual.widgets import OptionList
from textual.widgets.option_list import Option

from tdx.pipeline.editing.describing import change_between
from tdx.pipeline.editing.draft import Draft
from tdx.tui.profile.messages import MODES, CostRow, Costs, ModeCosts, ModeName
from tdx.tui.profile.numbers import format_delta, format_micros, format_percent

MAX_RUNS = 50
NOISE_FLOOR = 0.01
"""A difference of less than this share of the step is none."""
RowKey = tuple[str, str, str]


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

    def key(self, row: CostRow) -> RowKey:
        """What a row is called in every run: a stage has its number, wherever it is moved."""
        if row.work != "stage":
            return (row.work, "" if row.work == "env" else row.name, row.lane)
        positions = self.draft.positions
        last = max(row.index, row.upto)
        places = positions[row.index : last + 1]
        numbers = ",".join(str(self.draft.stages[place].number) for place in places)
        return ("stage", numbers, row.lane)


ModeSelection = Literal["planned", "eager", "compiled", "both", "all"]
"""A mode; ``both`` are eager and planned side by side, ``all`` are all three."""
MODE_SELECTIONS: tuple[ModeSelection, ...] = ("planned", "eager", "compiled", "both", "all")
SELECTION_TITLES = {"both": "eager+planned", "all": "all modes"}
"""What is said of those that are no mode."""


def modes_for(wanted: ModeSelection) -> tuple[ModeName, ...]:
    """The modes that are to be measured."""
    if wanted == "both":
        return ("eager", "planned")
    return MODES if wanted == "all" else (wanted,)


def displayed_modes(run: Run, wanted: ModeSelection) -> list[ModeCosts]:
    """What a run has of the modes that are wanted, or the one that it has."""
    found = [run.costs.mode(name) for name in modes_for(wanted)]
    there = [mode for mode in found if mode is not None]
    return there or list(run.costs.modes[:1])


def displayed_mode(run: Run, wanted: ModeSelection) -> ModeCosts | None:
    """Of what is shown of a run the mode that rollouts run in, or the first."""
    there = displayed_modes(run, wanted)
    first = next(iter(there), None)
    return next((mode for mode in there if mode.mode == "planned"), first)


def is_side_by_side(run: Run, wanted: ModeSelection) -> bool:
    """Whether several modes can be shown beside each other, and shall be."""
    return len(displayed_modes(run, wanted)) > 1


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
    def kind(self) -> Literal["new", "removed", "same", "slower", "faster"]:
        """What has become of it."""
        if self.before_us is None:
            return "new"
        if self.after_us is None:
            return "removed"
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
    rows: dict[RowKey, Delta]
    removed: tuple[CostRow, ...]


def compare_runs(run: Run, other: Run, mode: str) -> Comparison | None:
    """A run beside another one; none where one of them has nothing in this mode."""
    after, before = run.costs.mode(mode), other.costs.mode(mode)
    if after is None or before is None or not after.steps or not before.steps:
        return None
    noise = max(after.noise, before.noise, NOISE_FLOOR)
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
    return max(noise * largest, error, NOISE_FLOOR / 4 * before.step_us)


class RunHistory:
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
        change = change_between(self._runs[-1].draft, draft) if self._runs else "first run"
        costs = costs.numbered(draft.positions)
        run = Run(self._count, draft, costs, "as before" if change == "nothing" else change, ended)
        self._runs.append(run)
        del self._runs[:-MAX_RUNS]
        return run

    def previous(self, run: Run, mode: str) -> Run | None:
        """The last run before this one that was measured in the same mode."""
        earlier = [each for each in self._runs if each.number < run.number]
        return next((each for each in reversed(earlier) if _has_mode(each, mode)), None)


def _has_mode(run: Run, mode: str) -> bool:
    found = run.costs.mode(mode)
    return found is not None and found.steps > 0


_MAX_NAMES = 3
_NOISE_STYLES = {"quiet": "$text-success", "noisy": "$text-error", "unknown": "$text-warning"}
_DELTA_STYLES = {"slower": "$text-error", "faster": "$text-success", "same": "dim"}


def run_summary(
    run: Run, wanted: ModeSelection, other: Run | None, now: Draft, low: bool
) -> Content:
    """What a run says: the step, the noise, and what is different.

    Args:
        run: the run that is shown.
        wanted: the mode, or both.
        other: what it is compared with.
        now: the chain as it is now.
        low: whether there is little room.
    """
    mode = displayed_mode(run, wanted)
    head: list[Content | str | tuple[str, str]] = [(f"#{run.number} {run.change}", "bold")]
    edited = change_between(run.draft, now)
    if edited != "nothing":
        head += [("  edited: ", "dim"), (edited, "$text-accent")]
    parts = [Content.assemble(*head)]
    if mode is not None and mode.steps:
        parts += _step_summary(run, mode, wanted, other, low)
    if run.ended is not None:
        parts.append(Content.styled(f"✕ {run.ended}", "$text-error"))
    if mode is not None:
        parts += _sync_notes(mode)
        parts += [Content.styled(note, "$text-warning") for note in mode.notes]
    return Content("\n").join(parts)


def run_text(run: Run, wanted: ModeSelection, other: Run | None) -> str:
    """A run on one line: ``#2 remove CatFrames: 46.5 µs/step, -7.05 µs (-13 %) to #1``."""
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
    run: Run, mode: ModeCosts, wanted: ModeSelection, other: Run | None, low: bool
) -> list[Content]:
    several = len(displayed_modes(run, wanted)) > 1
    parts: list[Content | str | tuple[str, str]] = [_step_text(run, mode, wanted)]
    comparison = None if other is None else compare_runs(run, other, mode.mode)
    if comparison is not None and other is not None and not several:
        parts += ["  ", delta_text(comparison.step, other, low)]
    style = _NOISE_STYLES.get(mode.judgement, "dim")
    if low:
        return [Content.assemble(*parts, "  ", (f"±{mode.noise:.0%}", style))]
    rate = f"{mode.mode} · {mode.frames_per_second:,.0f} frames/s · "
    noise = f"±{mode.noise:.1%} {mode.judgement}"
    found = [Content.assemble(*parts), Content.assemble((rate, "dim"), (noise, style))]
    if mode.judgement in ("noisy", "unknown"):
        found.append(Content.styled(mode.noise_text, style))
    return found


def _step_text(run: Run, mode: ModeCosts, wanted: ModeSelection) -> Content:
    modes = [each for each in displayed_modes(run, wanted) if each.steps]
    if len(modes) < 2:
        return Content.styled(f"{format_micros(mode.step_us)} µs/step", "bold")
    first, parts = modes[0].step_us, []
    for each in modes:
        ratio = each.step_us / first - 1
        saved = f" ({format_percent(ratio)})" if each is not modes[0] else ""
        tone = "" if not saved else "$text-success" if ratio < 0 else "$text-error"
        parts.append(Content.assemble(f"{each.mode} {format_micros(each.step_us)}", (saved, tone)))
    return Content.assemble(Content(", ").join(parts), " µs/step")


def _sync_notes(mode: ModeCosts) -> list[Content]:
    """Who makes the host wait for the accelerator; nobody sees that in the times."""
    named = list(dict.fromkeys(row.label for row in mode.rows if row.syncs))
    if not named:
        return []
    more = [f"{len(named) - _MAX_NAMES} more"] if len(named) > _MAX_NAMES else []
    where = ", ".join([*named[:_MAX_NAMES], *more])
    text = f"hidden syncs: the host waits for the GPU in {where}"
    return [Content.styled(text, "$text-warning")]


def delta_text(delta: Delta, other: Run, low: bool = False) -> Content:
    """The difference of a step to another run: ``-12.1 µs (-9 %) to #2``."""
    if not delta.before_us:
        return Content("")
    if delta.kind == "same":
        within = "" if low else ", within the noise"
        return Content.styled(f"≈ as in #{other.number}{within}", "dim")
    share = format_percent(delta.us / delta.before_us)
    text = f"{format_delta(delta.us)} µs ({share}) to #{other.number}"
    return Content.styled(text, f"bold {_DELTA_STYLES[delta.kind]}")


def history_line(run: Run, before: Run | None, wanted: ModeSelection, marks: str) -> Content:
    """A run in the list of runs."""
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


WELCOME = """What does each part of a rollout cost? [b]r[/b] measures the chain in the background.

Edit the chain and measure again: the difference to the run before stands beside each row."""


class RunList(OptionList):
    """One line for each run; the one under the cursor is shown."""

    class Chosen(Message):
        """A run is to be shown."""

        def __init__(self, number: int) -> None:
            super().__init__()
            self.number = number

    def __init__(self) -> None:
        super().__init__(id="profile-runs", compact=True)

    def show_runs(
        self, history: RunHistory, wanted: ModeSelection, shown: Run | None, base: Run | None
    ) -> None:
        """List the runs.

        Args:
            history: all of them.
            wanted: the modes that are looked at.
            shown: the run that is shown.
            base: the run that others are compared with, where it is always the same.
        """
        runs = list(reversed(history.runs))
        self.set_class(len(runs) < 2, "-few")
        with self.prevent(OptionList.OptionHighlighted):
            self.clear_options()
            for run in runs:
                mode = displayed_mode(run, wanted)
                before = None if mode is None else history.previous(run, mode.mode)
                line = history_line(run, before, wanted, "◆" if run is base else " ")
                self.add_option(Option(line, id=f"run-{run.number}"))
            if shown in runs:
                self.highlighted = runs.index(shown)

    @on(OptionList.OptionSelected)
    @on(OptionList.OptionHighlighted)
    def _run_chosen(self, event: OptionList.OptionMessage) -> None:
        event.stop()
        self.post_message(self.Chosen(int((event.option.id or "run-0").removeprefix("run-"))))

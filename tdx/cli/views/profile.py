"""The layout of a profile: what each part of a rollout costs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, TypeVar

from tdx.cli.output.terminal import UNLIMITED
from tdx.cli.output.view import Block, Cell, Column, Heading, Paragraph, Style, Table, View
from tdx.cli.views.profile_comparisons import (
    advice_blocks,
    advice_data,
    change_blocks,
    change_data,
    marginal_blocks,
    marginal_data,
    verdict,
)
from tdx.cli.views.profile_table import (
    MARK,
    Line,
    cost_table,
    count,
    histogram,
    line_of,
    micros,
    number_table,
    others_line,
    specs_line,
    total_line,
)
from tdx.core.meter import Lane
from tdx.profiling.advice import Advised
from tdx.profiling.compare import Comparison
from tdx.profiling.limits import Limit
from tdx.profiling.machine import Machine
from tdx.profiling.marginal import Marginal
from tdx.profiling.result import (
    DeviceUse,
    MemoryUse,
    Mode,
    ModeProfile,
    OperatorUse,
    Profile,
    Row,
)
from tdx.profiling.saved import row_data, to_json

Order = Literal["chain", "share", "n", "mean", "p50", "p90", "p95", "p99", "max", "iqr"]

_JUDGED: dict[str, Style] = {"quiet": "good", "fair": "", "noisy": "bad", "unknown": "changed"}


@dataclass(frozen=True, slots=True)
class Layout:
    """What of a profile is shown, and in which order.

    Args:
        order: of the rows: as in the chain, or the largest of a column first.
        top: how many rows; all by default. The others are one row.
        histograms: whether each row's times are drawn as well.
    """

    order: Order = "chain"
    top: int | None = None
    histograms: bool = False


@dataclass(frozen=True, slots=True)
class Extras:
    """What is shown beside a profile.

    Args:
        marginal: what the chain takes without each of its stages, for each mode.
        comparison: what differs from a baseline.
        limits: what that was held to.
        baseline: what the baseline is called.
        advice: what was tried to make it cheaper, for each mode.
    """

    marginal: tuple[Marginal, ...] = ()
    comparison: Comparison | None = None
    limits: tuple[Limit, ...] = ()
    baseline: str = ""
    advice: tuple[tuple[Mode, Advised], ...] = ()

    @property
    def failed(self) -> bool:
        """Whether something is slower than it may be."""
        return self.comparison is not None and bool(self.comparison.failures)


def profile_view(
    profile: Profile, layout: Layout | None = None, extras: Extras | None = None
) -> View:
    """Lay out a profile.

    Args:
        profile: what was measured.
        layout: what of it to show.
        extras: what else there is to show.
    """
    chosen, more = layout or Layout(), extras or Extras()

    def blocks(width: int) -> list[Block]:
        shown: list[Block] = [*_head(profile)]
        if len(profile.modes) > 1:
            shown += side_by_side(profile, width)
        for mode in profile.modes:
            shown += _mode(mode, chosen, width)
        return [*shown, *extra_blocks(more, width)]

    data = to_json(profile) | _extra_data(more)
    return View("profile", data, list(_records(profile, chosen)), blocks)


def extra_blocks(extras: Extras, width: int) -> Iterator[Block]:
    """What stands below the modes."""
    for cost in extras.marginal:
        yield from marginal_blocks(cost, width)
    for mode, advice in extras.advice:
        yield from advice_blocks(mode, advice)
    if extras.comparison is not None:
        told = verdict(extras.comparison, extras.limits)
        yield Heading(f"compared with {extras.baseline}", told)
        yield from change_blocks(extras.comparison, extras.limits, width)


def _extra_data(extras: Extras) -> dict[str, Any]:
    data: dict[str, Any] = {}
    if extras.marginal:
        data["marginal"] = [marginal_data(cost) for cost in extras.marginal]
    if extras.advice:
        data["advice"] = [advice_data(mode, advice) for mode, advice in extras.advice]
    if extras.comparison is not None:
        data["comparison"] = {"baseline": extras.baseline, **change_data(extras.comparison)}
    return data


def _head(profile: Profile) -> Iterator[Block]:
    settings = profile.settings
    yield Heading(profile.subject, "times in µs", level=1)
    steps = f"{settings.steps:,} steps × {settings.repeats} after {settings.warmup:,} to warm up"
    envs = f"{settings.num_envs} env{'' if settings.num_envs == 1 else 's'}"
    seed = "" if settings.seed is None else f", seed {settings.seed}"
    where = f" on {settings.device}" if settings.device else ""
    sync = "; waiting for the device around each part" if settings.sync else ""
    yield _fact("measured", f"{steps}; {envs}{where}, policy {settings.policy}{seed}{sync}")
    yield _fact("machine", machine_text(profile.machine))


def machine_text(machine: Machine) -> str:
    """A machine in one line."""
    return "; ".join(value for _, value in machine_facts(machine))


def machine_facts(machine: Machine) -> list[tuple[str, str]]:
    """What is known of a machine, with what each is."""
    threads = f"{machine.threads} thread{'' if machine.threads == 1 else 's'}"
    cores = f"{machine.cores} core{'' if machine.cores == 1 else 's'}"
    memory = f"{machine.memory_bytes / 2**30:,.0f} GiB" if machine.memory_bytes else ""
    facts = [
        ("processor", machine.processor),
        ("cores", f"{cores}, torch on {threads}"),
        ("memory", memory),
        ("accelerators", ", ".join(machine.accelerators)),
        ("system", machine.system),
        ("Python", f"Python {machine.python}"),
        ("packages", ", ".join(f"{name} {which}" for name, which in machine.packages.items())),
    ]
    return [(name, value) for name, value in facts if value]


def _fact(title: str, text: str, style: Style = "") -> Paragraph:
    return Paragraph([Cell(f"{title}: ", "dim"), Cell(text, style)], indent=2)


def _mode(mode: ModeProfile, layout: Layout, width: int) -> Iterator[Block]:
    rate = f"{micros(mode.step_us)} µs a step, {count(mode.frames_per_second)} frames/s"
    yield Heading(mode.mode, rate if int(mode.steps.sum()) else "no step was made")
    yield from mode_facts(mode)
    rows = ordered(mode, layout)
    table = cost_table(_lines(mode, rows), width)
    yield table
    if any(row.covers_many for row in rows):
        named = any(column.title == "per" for column in table.columns)
        told = "per step: " if named else f"{MARK} "
        told += "many steps ran in one call; the times are those of one step."
        yield Paragraph([Cell(told, "dim")], indent=2)
    if layout.histograms:
        yield from histograms(rows)
    yield from details(mode, width, rows)


def mode_facts(mode: ModeProfile) -> Iterator[Paragraph]:
    """What must be known of a measurement beside its rows."""
    if mode.error is not None:
        made = f"{int(mode.steps.sum()):,} steps in {len(mode.steps)} repeats"
        yield _fact("incomplete", f"{made}, then: {mode.error}", "bad")
    yield _fact("noise", mode.noise.message, _JUDGED[mode.noise.judgement])
    for note in mode.notes:
        yield _fact("note", note)


def mode_table(mode: ModeProfile) -> Table:
    """All rows and all columns."""
    return cost_table(_lines(mode, mode.rows), UNLIMITED)


def ordered(mode: ModeProfile, layout: Layout) -> list[Row]:
    """The rows that are shown, in the order that is wanted."""
    rows = list(mode.rows)
    if layout.top is not None and layout.top < len(rows):
        dearest = sorted(rows, key=lambda row: row.total_ns, reverse=True)[: layout.top]
        kept = {id(row) for row in dearest}
        rows = [row for row in rows if id(row) in kept]
    if layout.order == "share":
        rows.sort(key=lambda row: row.total_ns, reverse=True)
    elif layout.order != "chain":
        name: str = layout.order
        rows.sort(key=lambda row: float(getattr(row.statistics, name)), reverse=True)
    return rows


def _lines(mode: ModeProfile, rows: Sequence[Row]) -> list[Line]:
    shown = {id(row) for row in rows}
    others = [row for row in mode.rows if id(row) not in shown]
    lines = [line_of(mode, row) for row in rows]
    if others:
        lines.append(others_line(mode, others))
    lines.append(total_line(mode))
    if len(mode.specs_ns):
        lines.append(specs_line(mode))
    return lines


def _records(profile: Profile, layout: Layout) -> Iterator[dict[str, Any]]:
    """A record for each row of each mode, with the other passes' findings in it."""
    for mode in profile.modes:
        for row in ordered(mode, layout):
            memory, use = mode.memory.get(row.key), mode.on_device.get(row.key)
            data = row_data(mode, row)
            part = data.pop("part")
            record = {"mode": mode.mode, "work": part["work"], "stage": part["index"], **data}
            record["name"] = part["name"]
            for prefix, found in (("memory", memory), ("device", use)):
                values = {} if found is None else asdict(found)
                record |= {f"{prefix}_{name}": value for name, value in values.items()}
            yield record


Found = TypeVar("Found")
Key = tuple[str, Lane]

_BINS, _BAR = 8, 30
_DISPENSABLE = (
    *("objects kept", "objects' peak", "kernel µs", "copy µs", "added", "peak", "launches"),
    *("bytes out", "bytes in", "kernels", "bound", "lane"),
)
"""Columns that a narrow terminal goes without, the first one first."""
_TEXTS = ("part", "lane", "bound", "operator")
_DEAREST = 10
"""Operators that a terminal shows; a pipe gets all of them."""


def side_by_side(profile: Profile, width: int) -> Iterator[Block]:
    """What a step takes in each mode, in all and by part."""
    first = profile.modes[0]
    yield Heading("modes", f"µs of a step; faster than {first.mode} in brackets")
    names = {row.key: None for mode in profile.modes for row in mode.rows}
    rows = [[*_named(key), *(_of_step(mode, key) for mode in profile.modes)] for key in names]
    totals = [_total(mode, first) for mode in profile.modes]
    rates = [Cell(count(mode.frames_per_second)) for mode in profile.modes]
    noise = [Cell(f"±{mode.noise.spread:.1%}", "dim") for mode in profile.modes]
    rows.append([Cell("whole step", "name"), Cell(""), *totals])
    rows.append([Cell("frames/s", "name"), Cell(""), *rates])
    rows.append([Cell("noise", "dim"), Cell(""), *noise])
    yield number_table(
        ("part", "lane", *(mode.mode for mode in profile.modes)), rows, width, _TEXTS, _DISPENSABLE
    )


def _named(key: tuple[str, str]) -> tuple[Cell, Cell]:
    return Cell(key[0], "name"), Cell(key[1], "dim")


def _of_step(mode: ModeProfile, key: tuple[str, str]) -> Cell:
    found = next((row for row in mode.rows if row.key == key), None)
    return Cell("–", "dim") if found is None else Cell(micros(mode.step_share_us(found)))


def _total(mode: ModeProfile, first: ModeProfile) -> Cell:
    told = micros(mode.step_us)
    if mode is not first and mode.step_us and first.step_us:
        told = f"({first.step_us / mode.step_us:.2f} ×) {told}"
    return Cell(told, "name")


def histograms(rows: Sequence[Row]) -> Iterator[Block]:
    """The times of each row as bars."""
    for row in rows:
        if len(row.times_ns) < 2:
            continue
        counts, edges = histogram(row.samples_us, _BINS)
        most = max(counts)
        bars = [
            [
                Cell(f"  {micros(low)} … {micros(high)}" + (" and above" if last else ""), "dim"),
                Cell(f"{each:,}"),
                Cell("█" * -(-each * _BAR // most), "added"),
            ]
            for each, low, high, last in zip(
                counts, edges[:-1], edges[1:], [False] * (_BINS - 1) + [True], strict=True
            )
        ]
        per = "step" if row.covers_many else "call"
        yield Heading(f"{row.part.label} {row.part.lane}", f"µs of a {per}")
        yield Table([Column(fixed=True)] * 3, bars)


def details(mode: ModeProfile, width: int, rows: Sequence[Row] | None = None) -> Iterator[Block]:
    """What was measured in passes of their own, where it was.

    Args:
        mode: whose.
        width: columns of the terminal.
        rows: those that are shown; all by default.
    """
    shown = {row.key for row in rows} if rows is not None else None

    def chosen(found: Mapping[Key, Found]) -> dict[Key, Found]:
        return {key: use for key, use in found.items() if shown is None or key in shown}

    device, memory = chosen(mode.on_device), chosen(mode.memory)
    operators = chosen(mode.operators)
    if device:
        yield Heading("on the device", "in a step")
        yield _device(device, width)
        yield from _syncs(device)
    if memory:
        yield Heading("memory", "bytes in a step; the peak above what was there before a call")
        yield _memory(memory, width)
    if operators:
        yield Heading("operators", "in a step, as the slower pass for operators saw them")
        yield from _operators(operators, width)


def _device(uses: Mapping[Key, DeviceUse], width: int) -> Table:
    rows = []
    for key, use in uses.items():
        copied = (use.to_device_bytes, use.to_host_bytes)
        numbers = (use.kernels, use.launches, *copied, use.allocated_bytes, use.peak_bytes)
        rows.append(
            [
                *_named(key),
                Cell(micros(use.time_us)),
                Cell(micros(use.kernel_us)),
                Cell(micros(use.copy_us)),
                *(Cell(_few(number)) for number in numbers),
                Cell(_few(sum(use.syncs.values())), "bad" if use.syncs else ""),
                Cell("launch" if use.launch_bound else "", "changed"),
            ]
        )
    titles = (
        "µs",
        "kernel µs",
        "copy µs",
        "kernels",
        "launches",
        "bytes in",
        "bytes out",
        "added",
        "peak",
        "syncs",
        "bound",
    )
    return number_table(("part", "lane", *titles), rows, width, _TEXTS, _DISPENSABLE)


def _syncs(uses: Mapping[Key, DeviceUse]) -> Iterator[Paragraph]:
    """Where the host waits for the device."""
    for (label, lane), use in uses.items():
        for line, often in use.syncs.items():
            times = "once" if often == 1 else f"{_few(often)} times"
            told = Cell(f": waits for the device {times} a step at {line}")
            yield Paragraph([Cell(f"{label} {lane}", "name"), told], indent=2)


def _memory(uses: Mapping[Key, MemoryUse], width: int) -> Table:
    rows = [
        [
            *_named(key),
            Cell(count(use.allocated_bytes)),
            Cell(count(use.peak_bytes)),
            Cell(_few(use.kept_bytes)),
            Cell(count(use.objects_peak_bytes)),
            Cell(_few(use.objects_kept_bytes)),
        ]
        for key, use in uses.items()
    ]
    titles = ("allocated", "peak", "kept", "objects' peak", "objects kept")
    return number_table(("part", "lane", *titles), rows, width, _TEXTS, _DISPENSABLE)


def _operators(found: Mapping[Key, tuple[OperatorUse, ...]], width: int) -> Iterator[Block]:
    every = [(key, use) for key, uses in found.items() for use in uses]
    if width != UNLIMITED:
        every.sort(key=lambda each: each[1].time_us, reverse=True)
    left = 0 if width == UNLIMITED else max(0, len(every) - _DEAREST)
    rows = [
        [*_named(key), Cell(micros(use.time_us)), Cell(_few(use.calls)), Cell(use.name)]
        for key, use in every[: len(every) - left]
    ]
    yield number_table(
        ("part", "lane", "µs", "calls", "operator"), rows, width, _TEXTS, _DISPENSABLE
    )
    if left:
        told = f"{left} cheaper ones are shown where this is not a terminal, as with `| less`"
        yield Paragraph([Cell(told, "dim")], indent=2)


def _few(value: float) -> str:
    """A number that is often whole."""
    if abs(value) < 0.005:
        return "0"
    return f"{value:,.0f}" if value == round(value) or abs(value) >= 100 else f"{value:.2f}"

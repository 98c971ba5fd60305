"""Profiles: what bounds a rollout; the cost of each part, memory, operators and device."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import ClassVar, Literal, TypeVar

from tdx.cli.charts import flame_chart, times_plot
from tdx.cli.views import (
    NONE,
    UNLIMITED,
    Block,
    Cell,
    Column,
    Fluid,
    Gallery,
    Heading,
    Paragraph,
    Picture,
    Style,
    Table,
    View,
    dim,
    fact,
    micros,
)
from tdx.cli.views.profile_comparisons import (
    advice_blocks,
    comparison_blocks,
    marginal_blocks,
    verdict,
)
from tdx.cli.views.profile_table import (
    Line,
    cost_table,
    line_of,
    number_table,
    others_line,
    share_bar,
    specs_line,
    total_line,
    whole_number,
)
from tdx.core.meter import Lane
from tdx.foundation.serialization import Entries, Entry, Result
from tdx.foundation.text import count_text, format_bytes
from tdx.profiling.bottleneck import Cost, list_kind_costs, list_part_costs, suggest_measurements
from tdx.profiling.compare import ProfileComparison
from tdx.profiling.interleaved import MarginalCosts
from tdx.profiling.machine import Machine
from tdx.profiling.plain import OperatorUse
from tdx.profiling.result import (
    DeviceSummary,
    DeviceUse,
    MemoryUse,
    ModeProfile,
    Profile,
    Row,
    Settings,
    histogram,
)
from tdx.profiling.saved import ProfileReport, RowReport
from tdx.profiling.suggestions import Candidate, Suggestions
from tdx.profiling.traces import build_mean_step

_MAX_PARTS, _MAX_CANDIDATES = 5, 3
"""Parts and changes that a summary shows."""
Order = Literal["chain", "share", "n", "mean", "p50", "p90", "p95", "p99", "max", "iqr"]

_NOISE_STYLES: dict[str, Style] = {
    "quiet": "good",
    "fair": "",
    "noisy": "bad",
    "unknown": "changed",
}


@dataclass(frozen=True, slots=True)
class TableOptions:
    """Rows of a profile to show, and their order.

    Args:
        order: ``chain``, or the column to sort by, largest first.
        top: Number of rows. ``None``: all, or a few in a summary; the others are summed up in one
            row.
        is_summary: If True, show only the most expensive parts and what bounds the pipeline.
        passes: If True, a summary also has the results of the other passes.
    """

    order: Order = "chain"
    top: int | None = None
    histograms: bool = False
    is_summary: bool = False
    passes: bool = False


@dataclass(frozen=True, slots=True)
class Extras(Result):
    """Other measurements to show with a profile.

    Args:
        marginal: Cost of the chain without each of its stages, for each mode.
        comparison: Comparison with a baseline.
        advice: Changes that were tried, for each mode.
        candidates: Changes that a summary suggests to try.
    """

    json_entries: ClassVar[Entries] = (
        *(Entry(name, omit_none=True) for name in ("marginal", "advice", "comparison")),
    )

    marginal: tuple[MarginalCosts, ...] | None = None
    comparison: ProfileComparison | None = None
    advice: tuple[Suggestions, ...] | None = None
    candidates: tuple[Candidate, ...] = ()

    @property
    def failed(self) -> bool:
        """True if a limit of the comparison is exceeded."""
        return self.comparison is not None and self.comparison.failed


@dataclass(frozen=True, slots=True)
class ProfileDocument(Result):
    """A profile, and other measurements beside it."""

    json_entries: ClassVar[Entries] = (
        *(Entry("report", inline=True), Entry("extras", inline=True)),
    )

    report: ProfileReport
    extras: Extras


def profile_view(
    profile: Profile, options: TableOptions | None = None, extras: Extras | None = None
) -> View:
    """Lay out a profile."""
    options, extras = options or TableOptions(), extras or Extras()

    def blocks() -> list[Block]:
        result: list[Block] = [*(_summary_head if options.is_summary else _head)(profile)]
        if (comparison := extras.comparison) is not None:
            result.append(Heading(f"comparison with {comparison.baseline}", verdict(comparison)))
            result += comparison_blocks(comparison, is_summary=options.is_summary)
            if options.is_summary and len(profile.modes) == 1:
                result.append(Heading("costs"))
        if len(profile.modes) > 1 and not options.is_summary:
            result += side_by_side(profile)
        for mode in profile.modes:
            result += (_mode_summary if options.is_summary else _mode)(profile, mode, options)
        if options.is_summary:
            result += _suggestions(profile, extras)
        for cost in extras.marginal or ():
            result += marginal_blocks(cost)
        for advice in extras.advice or ():
            result += advice_blocks(advice)
        if options.is_summary:
            result.append(
                dim("--detail shows all calls, their percentiles, memory and operators", 2)
            )
        return result

    result = ProfileDocument(ProfileReport(profile), extras)
    return View("profile", result, blocks, lambda: _records(profile, options))


def _summary_head(profile: Profile) -> Iterator[Block]:
    """Yield the time of a step, and what it was measured on."""
    fastest = _fastest(profile)
    has_modes = len(profile.modes) > 1
    aside = f"fastest: {fastest.mode}, {_rate(profile, fastest)}" if has_modes else ""
    yield Heading(profile.subject, aside or _rate(profile, fastest), level=1)
    mode = "" if has_modes else f"{fastest.mode}, "
    machine = ", ".join((profile.machine.processor, *profile.machine.accelerators))
    yield fact("measured", f"{mode}{_measured_text(profile.settings)}; {machine}")


def _fastest(profile: Profile) -> ModeProfile:
    return min(profile.modes, key=lambda mode: mode.step_us or math.inf)


def _rate(profile: Profile, mode: ModeProfile) -> str:
    """Return the time of a step, and how many there are in a second."""
    if not int(mode.steps.sum()):
        return "no steps"
    envs = profile.settings.num_envs
    of = f" of {count_text(envs, 'env')}" if envs > 1 else ""
    unit = "frames/s" if envs > 1 else "steps/s"
    return f"{micros(mode.step_us)} µs per step{of}, {whole_number(mode.frames_per_second)} {unit}"


def _mode_summary(profile: Profile, mode: ModeProfile, options: TableOptions) -> Iterator[Block]:
    """Yield the most expensive parts of a mode, and what bounds it."""
    if len(profile.modes) > 1:
        yield Heading(mode.mode, _rate(profile, mode))
    yield from _doubts(mode)
    for note in mode.notes:
        yield fact("note", note)
    if not mode.rows:
        return
    costs = list_part_costs(mode)
    if mode.on_device:
        # Launching an expensive kernel costs the host little.
        costs.sort(key=lambda cost: -max(cost.step_us, _span_us(mode, cost)))
    count = options.top or _MAX_PARTS
    if options.top is None and len(costs) == count + 1:
        # A single other part takes no more space than the sum of it.
        count += 1
    shown, others = costs[:count], costs[count:]
    has_device = bool(mode.on_device)
    largest = max(cost.share for cost in costs)
    rows = [_cost_row(cost, largest, mode if has_device else None) for cost in shown]
    if others:
        step_us, share = sum(cost.step_us for cost in others), sum(cost.share for cost in others)
        calls = tuple(row for cost in others for row in cost.rows)
        other = Cost(count_text(len(others), "other part"), step_us, 0.0, share, calls)
        row = _cost_row(other, largest, mode if has_device else None)
        # No one thing bounds them.
        rows.append([*row[:4], Cell(""), *row[5:]] if has_device else row)
    total = [Cell("whole step", "name"), Cell(micros(mode.step_us)), Cell(""), Cell("")]
    if has_device:
        uses = mode.on_device.values()
        spans, busy = sum(use.time_us for use in uses), sum(use.busy_us for use in uses)
        busy = mode.device.busy_us if mode.device is not None else busy
        total[2:2] = [Cell(micros(spans)), Cell(micros(busy)), Cell("")]
    rows.append(total)
    device = ("span µs", "busy µs", "bound by") if has_device else ()
    yield Table.of(
        ("part", "host µs/step" if has_device else "µs/step", *device, "share", ""),
        rows,
        fixed=True,
        numbers=("µs/step", "host µs/step", "span µs", "busy µs", "share"),
        optional=("", "bound by"),
    )
    kinds = list_kind_costs(mode)
    shares = ", ".join(f"{kind.name} {kind.share:.0%}" for kind in kinds)
    cells = [Cell("bound by: ", "dim"), Cell(kinds[0].name, "name"), Cell(f" ({shares})")]
    yield Paragraph(cells, indent=2)
    if mode.device is not None and (message := mode.device.message) is not None:
        yield fact(mode.device.name, message)
    if options.passes:
        yield from details(mode, mode.rows)


def _span_us(mode: ModeProfile, cost: Cost) -> float:
    uses = (mode.on_device.get(row.key) for row in cost.rows)
    return sum(use.time_us for use in uses if use is not None)


def _cost_row(cost: Cost, largest: float, on_device: ModeProfile | None) -> list[Cell]:
    """Return the cells of a part; with its figures on the device, if there is one."""
    device: list[Cell] = []
    if on_device is not None:
        uses = [use for row in cost.rows if (use := on_device.on_device.get(row.key)) is not None]
        first = max(uses, key=lambda use: use.time_us, default=None)
        busy = sum(use.busy_us for use in uses)
        bound = first.bound_by or "" if first is not None else ""
        device = [Cell(micros(_span_us(on_device, cost))), Cell(micros(busy)), Cell(bound)]
    bar = share_bar(cost.share, largest)
    numbers = [Cell(micros(cost.step_us)), *device, Cell(f"{cost.share:.1%}")]
    return [Cell(cost.name, "name"), *numbers, Cell(bar, "added")]


def _suggestions(profile: Profile, extras: Extras) -> Iterator[Block]:
    """Yield what may make the pipeline faster, unless changes have been tried already."""
    if extras.advice or not any(mode.rows for mode in profile.modes):
        return
    for candidate in extras.candidates[:_MAX_CANDIDATES]:
        yield fact("may help", f"{candidate.change} ({candidate.found})", title_style="changed")
    left = len(extras.candidates) - _MAX_CANDIDATES
    if extras.candidates:
        more = f"{left} more: " if left > 0 else ""
        yield dim(f"{more}--advice measures these changes", 2)
    for text in suggest_measurements(_fastest(profile)):
        yield fact("may help", text, title_style="changed")


def _head(profile: Profile) -> Iterator[Block]:
    yield Heading(profile.subject, "times in µs", level=1)
    yield fact("measured", _measured_text(profile.settings))
    yield fact("machine", machine_text(profile.machine))


def _measured_text(settings: Settings) -> str:
    steps = f"{settings.steps:,} steps × {settings.repeats} after {settings.warmup:,} warm-up steps"
    envs = count_text(settings.num_envs, "env")
    seed = "" if settings.seed is None else f", seed {settings.seed}"
    where = f" on {settings.device}" if settings.device else ""
    sync = "; device synchronized around each part" if settings.sync else ""
    return f"{steps}; {envs}{where}, policy {settings.policy}{seed}{sync}"


def machine_text(machine: Machine) -> str:
    """Return the facts about a machine on one line."""
    threads, cores = count_text(machine.threads, "thread"), count_text(machine.cores, "core")
    facts = [
        machine.processor,
        f"{cores}, torch uses {threads}",
        f"{machine.memory_bytes / 2**30:,.0f} GiB" if machine.memory_bytes else "",
        ", ".join(machine.accelerators),
        machine.system,
        f"Python {machine.python}",
        ", ".join(f"{name} {version}" for name, version in machine.packages.items()),
    ]
    return "; ".join(filter(None, facts))


def _doubts(mode: ModeProfile) -> Iterator[Block]:
    """Yield why the times may be wrong."""
    if mode.error is not None:
        progress = f"{int(mode.steps.sum()):,} steps in {len(mode.steps)} repeats"
        yield fact("incomplete", f"{progress}, then: {mode.error}", "bad")
    yield fact("noise", mode.noise.message, _NOISE_STYLES[mode.noise.judgement])
    if mode.preemption is not None:
        yield fact("preempted", mode.preemption, "bad")


def _mode(profile: Profile, mode: ModeProfile, options: TableOptions) -> Iterator[Block]:
    yield Heading(mode.mode, _rate(profile, mode))
    yield from _doubts(mode)
    for note in mode.notes:
        yield fact("note", note)
    rows = ordered(mode, options)
    yield cost_table(_lines(mode, rows))
    for note in table_notes(rows):
        yield dim(note, 2)
    flames = Picture(lambda: flame_chart(build_mean_step(mode)))
    yield Gallery([flames], Heading("mean step", level=3), _FLAMES_TEXT)
    times = [
        Picture(partial(times_plot, row), f"{row.part.label} {row.part.lane}, µs per call")
        for row in rows
    ]
    yield Gallery(times, Heading("distribution of times", level=3), _TIMES_TEXT)
    if options.histograms:
        yield from histograms(rows)
    yield from details(mode, rows)


def table_notes(rows: Sequence[Row]) -> Iterator[str]:
    """Yield what the columns of a cost table hold, and which means a few calls dominate."""
    yield (
        "n, µs/call and p50 to IQR: single calls, in µs; "
        "µs/step: mean over all steps, µs/call ÷ steps/call"
    )
    chunked = [row for row in rows if row.covered_steps > 1]
    if chunked:
        names = ", ".join(f"{row.part.label} {row.part.lane}" for row in chunked)
        longest = max(int(row.steps.max()) for row in chunked)
        yield f"one call runs a chunk of up to {longest:,} steps: {names}"
    for row in rows:
        statistics, samples = row.statistics, row.samples_us
        if statistics.mean > statistics.p95:
            slowest = samples[samples > statistics.p95]
            share = slowest.sum() / samples.sum()
            calls = f"{len(slowest):,} of {statistics.n:,} calls took {share:.0%} of its time"
            yield f"{row.part.label} {row.part.lane}: the mean is above p95, since {calls}"


def ordered(mode: ModeProfile, options: TableOptions) -> list[Row]:
    """Return the rows to show in their order."""
    rows = list(mode.rows)
    if options.top is not None and options.top < len(rows):
        largest = sorted(rows, key=lambda row: row.total_ns, reverse=True)[: options.top]
        kept = {id(row) for row in largest}
        rows = [row for row in rows if id(row) in kept]
    if options.order == "share":
        rows.sort(key=lambda row: row.total_ns, reverse=True)
    elif options.order != "chain":
        name: str = options.order
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


def _records(profile: Profile, options: TableOptions) -> Iterator[dict[str, object]]:
    """Yield a record for each row of each mode, with the results of the other passes."""
    for mode in profile.modes:
        for row in ordered(mode, options):
            memory, use = mode.memory.get(row.key), mode.on_device.get(row.key)
            data = RowReport(mode, row).to_dict()
            part = data.pop("part")
            del data["samples"]
            record = {"mode": mode.mode, "work": part["work"], "stage": part["index"], **data}
            record["name"] = part["name"]
            for prefix, used in (("memory", memory), ("device", use)):
                values = {} if used is None else asdict(used)
                record |= {f"{prefix}_{name}": value for name, value in values.items()}
            yield record


_FLAMES_TEXT = (
    "Parts are drawn below the parts that call them. Blue: env, orange: stages, green: policy, "
    "purple: wrappers. Hover for details."
)
_TIMES_TEXT = "From the shortest time to p99; the last bar includes all longer times."
Use = TypeVar("Use")
Key = tuple[str, Lane]

_BINS, _BAR = 8, 30
_OPTIONAL_COLUMNS = (
    *("objects kept", "objects' peak", "added", "peak", "delay µs", "kernels", "launches"),
    *("bytes out", "bytes in", "syncs", "idle µs", "lane", "wait µs"),
)
"""Columns that may be dropped, the first one first."""
_TEXT_COLUMNS = ("part", "lane", "bound by", "operator")
_MAX_OPERATORS = 10
"""Operators to show on a terminal; a pipe gets all of them."""


def side_by_side(profile: Profile) -> Iterator[Block]:
    """Yield the time per step in each mode, in total and by part."""
    first = profile.modes[0]
    yield Heading("modes", f"µs per step; speedup over {first.mode} in parentheses")
    names = {row.key: None for mode in profile.modes for row in mode.rows}
    rows = []
    for key in names:
        cells = []
        for mode in profile.modes:
            row = next((row for row in mode.rows if row.key == key), None)
            cost = NONE if row is None else micros(mode.step_share_us(row))
            cells.append(Cell(cost, "dim" if row is None else ""))
        rows.append([*_name_cells(key), *cells])
    totals = []
    for mode in profile.modes:
        text = micros(mode.step_us)
        if mode is not first and mode.step_us and first.step_us:
            text = f"({first.step_us / mode.step_us:.2f} ×) {text}"
        totals.append(Cell(text, "name"))
    rates = [Cell(whole_number(mode.frames_per_second)) for mode in profile.modes]
    noise = [Cell(f"±{mode.noise.spread:.1%}", "dim") for mode in profile.modes]
    rows.append([Cell("whole step", "name"), Cell(""), *totals])
    rows.append([Cell("frames/s", "name"), Cell(""), *rates])
    rows.append([Cell("noise", "dim"), Cell(""), *noise])
    yield number_table(
        ("part", "lane", *(mode.mode for mode in profile.modes)),
        rows,
        _TEXT_COLUMNS,
        _OPTIONAL_COLUMNS,
    )


def _name_cells(key: tuple[str, str]) -> tuple[Cell, Cell]:
    return Cell(key[0], "name"), Cell(key[1], "dim")


def histograms(rows: Sequence[Row]) -> Iterator[Block]:
    """Yield the distribution of times of each row as bars."""
    for row in rows:
        if len(row.times_ns) < 2:
            continue
        counts, edges = histogram(row.samples_us, _BINS)
        most = max(counts)
        bars = [
            [
                Cell(f"  {micros(low)} … {micros(high)}" + (" and above" if last else ""), "dim"),
                Cell(f"{count:,}"),
                Cell("█" * -(-count * _BAR // most), "added"),
            ]
            for count, low, high, last in zip(
                counts, edges[:-1], edges[1:], [False] * (_BINS - 1) + [True], strict=True
            )
        ]
        yield Heading(f"{row.part.label} {row.part.lane}", "µs per call")
        yield Table([Column(fixed=True)] * 3, bars)


def details(mode: ModeProfile, rows: Sequence[Row]) -> Iterator[Block]:
    """Yield the results of the other passes: device, memory, operators."""
    keys = {row.key for row in rows}

    def select(uses: Mapping[Key, Use]) -> dict[Key, Use]:
        return {key: use for key, use in uses.items() if key in keys}

    device, memory = select(mode.on_device), select(mode.memory)
    operators = select(mode.operators)
    if device:
        yield Heading("device", "per step, the most expensive part first", level=3)
        if mode.device is not None:
            yield from _device_facts(mode.device)
        hosts = {row.key: mode.step_share_us(row) for row in rows}
        device = dict(sorted(device.items(), key=lambda item: -item[1].time_us))
        yield _device(device, hosts)
        yield from _device_notes(device, mode.step_us)
    if memory:
        yield Heading("memory", "bytes per step; peak above the level before a call", level=3)
        yield _memory(memory)
    if operators:
        yield Heading("operators", "per step, measured in a separate, slower pass", level=3)
        yield Fluid(partial(_operators, operators))


def _device_facts(device: DeviceSummary) -> Iterator[Block]:
    """Yield the device over the whole step: its state, timing modes, work, idle time and memory."""
    if (gpu := device.gpu) is not None:
        clocks = f"{gpu.sm_mhz:,} of {gpu.max_sm_mhz:,} MHz, memory {gpu.memory_mhz:,} MHz"
        yield fact("card", f"{device.name}, {gpu.name}, driver {gpu.driver}; clock {clocks}")
    timings = [
        f"{micros(step_us)} µs {how}"
        for how, step_us in (
            ("asynchronous", device.asynchronous_us),
            ("if the host waits for the device around each part", device.synchronized_us),
        )
        if step_us is not None
    ]
    yield fact("step", ", ".join(timings))
    events = f"{micros(device.span_us)} µs, without {micros(device.events_us)} µs for the events"
    yield fact("span", events)
    if device.traced_us is not None:
        idle = ", ".join(
            f"{micros(time_us)} {cause}"
            for cause, time_us in (
                ("nothing launched", device.idle_host_us),
                ("between kernels", device.idle_kernel_us),
                ("other", device.idle_other_us),
            )
        )
        work = f"busy {micros(device.busy_us)} of {micros(device.traced_us)} µs, idle: {idle}"
        yield fact("traced", f"{work}; unattributed: {device.unattributed:.1%} of the work")
    memory = []
    if device.torch_bytes is not None:
        memory.append(f"{format_bytes(device.torch_bytes)} held by torch")
    if gpu is not None:
        if gpu.process_bytes is not None:
            memory.append(f"{format_bytes(gpu.process_bytes)} by this process")
        total = format_bytes(gpu.total_bytes)
        memory.append(f"{format_bytes(gpu.used_bytes)} of {total} by all processes")
    if memory:
        yield fact("memory", ", ".join(memory))


def _device(uses: Mapping[Key, DeviceUse], hosts: Mapping[Key, float]) -> Table:
    rows = []
    for key, use in uses.items():
        times = (use.time_us, use.busy_us, use.wait_us, use.idle_us, use.launch_delay_us)
        numbers = (use.kernels, use.launches, use.to_device_bytes, use.to_host_bytes)
        rows.append(
            [
                *_name_cells(key),
                *(Cell(micros(time_us)) for time_us in (hosts.get(key), *times)),
                *(Cell(_number(number)) for number in numbers),
                *(Cell(_number(number)) for number in (use.allocated_bytes, use.peak_bytes)),
                Cell(_number(sum(use.syncs.values())), "bad" if use.syncs else ""),
                Cell(use.bound_by or "", "changed" if use.launch_bound else ""),
            ]
        )
    titles = (
        *("host µs", "span µs", "busy µs", "wait µs", "idle µs", "delay µs", "kernels", "launches"),
        *("bytes in", "bytes out", "added", "peak", "syncs", "bound by"),
    )
    return number_table(("part", "lane", *titles), rows, _TEXT_COLUMNS, _OPTIONAL_COLUMNS)


def _device_notes(uses: Mapping[Key, DeviceUse], step_us: float) -> Iterator[Paragraph]:
    """Yield why each part of at least 1 % of a step is bound by what it is, and the waits."""
    for (label, lane), use in uses.items():
        name = Cell(f"{label} {lane}", "name")
        if use.bound_by is not None and max(use.time_us, use.traced_us) >= step_us / 100:
            yield Paragraph([name, Cell(f": bound by {use.bound_by}: {use.evidence}")], indent=2)
        for wait in use.waits:
            where = f" at {wait.line}" if wait.line else ""
            text = (
                f": waits {micros(wait.time_us)} µs {_per_step(wait.calls)} in {wait.call}{where}"
            )
            yield Paragraph([name, Cell(text)], indent=2)
        for line, count in use.syncs.items():
            if line not in [wait.line for wait in use.waits]:
                text = f": waits for the device {_per_step(count)} at {line}"
                yield Paragraph([name, Cell(text)], indent=2)


def _per_step(count: float) -> str:
    return f"{'once' if count == 1 else f'{_number(count)} times'} per step"


def _memory(uses: Mapping[Key, MemoryUse]) -> Table:
    rows = [
        [
            *_name_cells(key),
            Cell(whole_number(use.allocated_bytes)),
            Cell(whole_number(use.peak_bytes)),
            Cell(_number(use.kept_bytes)),
            Cell(whole_number(use.objects_peak_bytes)),
            Cell(_number(use.objects_kept_bytes)),
        ]
        for key, use in uses.items()
    ]
    titles = ("allocated", "peak", "kept", "objects' peak", "objects kept")
    return number_table(("part", "lane", *titles), rows, _TEXT_COLUMNS, _OPTIONAL_COLUMNS)


def _operators(operators: Mapping[Key, tuple[OperatorUse, ...]], width: int) -> Iterator[Block]:
    all_uses = [(key, use) for key, uses in operators.items() for use in uses]
    if width != UNLIMITED:
        all_uses.sort(key=lambda item: item[1].time_us, reverse=True)
    left = 0 if width == UNLIMITED else max(0, len(all_uses) - _MAX_OPERATORS)
    rows = [
        [*_name_cells(key), Cell(micros(use.time_us)), Cell(_number(use.calls)), Cell(use.name)]
        for key, use in all_uses[: len(all_uses) - left]
    ]
    yield number_table(
        ("part", "lane", "µs", "calls", "operator"), rows, _TEXT_COLUMNS, _OPTIONAL_COLUMNS
    )
    if left:
        note = f"{left} cheaper operators are shown in a pipe, for example with `| less`"
        yield dim(note, 2)


def _number(value: float) -> str:
    """Return a number that is often an integer."""
    if abs(value) < 0.005:
        return "0"
    return f"{value:,.0f}" if value == round(value) or abs(value) >= 100 else f"{value:.2f}"

"""The layout of a profile: what each part of a rollout costs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from tdx.cli.output.terminal import UNLIMITED
from tdx.cli.output.view import Block, Cell, Heading, Paragraph, Style, Table, View
from tdx.cli.views.advice_view import advice_blocks, advice_data
from tdx.cli.views.marginal_view import marginal_blocks, marginal_data
from tdx.cli.views.profile_change_view import change_blocks, change_data, verdict
from tdx.cli.views.profile_columns import (
    MARK,
    Line,
    cost_table,
    count,
    line_of,
    micros,
    others_line,
    specs_line,
    total_line,
)
from tdx.cli.views.profile_details import details, histograms, side_by_side
from tdx.profiling.compare import Limit, ProfileComparison
from tdx.profiling.machine import Machine
from tdx.profiling.marginal import MarginalCosts
from tdx.profiling.result import Mode, ModeProfile, Profile, Row
from tdx.profiling.saved import profile_to_json, row_to_json
from tdx.profiling.suggestions import Suggestions

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

    marginal: tuple[MarginalCosts, ...] = ()
    comparison: ProfileComparison | None = None
    limits: tuple[Limit, ...] = ()
    baseline: str = ""
    advice: tuple[tuple[Mode, Suggestions], ...] = ()

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

    data = profile_to_json(profile) | _extra_data(more)
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
            data = row_to_json(mode, row)
            part = data.pop("part")
            record = {"mode": mode.mode, "work": part["work"], "stage": part["index"], **data}
            record["name"] = part["name"]
            for prefix, found in (("memory", memory), ("device", use)):
                values = {} if found is None else asdict(found)
                record |= {f"{prefix}_{name}": value for name, value in values.items()}
            yield record

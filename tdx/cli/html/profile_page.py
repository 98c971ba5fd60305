"""A profile as one HTML page."""

from __future__ import annotations

from itertools import takewhile
from pathlib import Path
from typing import Any

from tdx.cli.html.profile_plots import flame_chart, growth_plot, times_plot
from tdx.cli.output.terminal import UNLIMITED
from tdx.cli.output.view import Block, Heading, Paragraph, Table
from tdx.cli.views.profile_columns import count, micros
from tdx.cli.views.profile_details import details, side_by_side
from tdx.cli.views.profile_view import (
    Extras,
    extra_blocks,
    machine_facts,
    mode_facts,
    mode_table,
)
from tdx.cli.views.sweep_view import grouped, growth_blocks, name_of, named, sweep_blocks
from tdx.profiling.result import ModeProfile, Profile
from tdx.profiling.sweep import CostGrowth, SweepResult, fit_growth
from tdx.profiling.sweep_axes import format_setting
from tdx.profiling.traces import build_mean_step
from tdx.text import escape_control_characters

_FOLDER = Path(__file__).parent
_LINES = 8
"""Colours of lines that the page has; the dearest parts are drawn."""


def profile_page(profile: Profile, extras: Extras | None = None) -> str:
    """The page, complete in itself: no script, and nothing that is loaded from elsewhere.

    Args:
        profile: what the page is about.
        extras: what else it shows.
    """
    compared = list(side_by_side(profile, UNLIMITED)) if len(profile.modes) > 1 else []
    return _rendered(
        "profile.html.j2",
        profile=profile,
        machine=machine_facts(profile.machine),
        compared=_sections(compared),
        modes=[_mode(mode) for mode in profile.modes],
        extras=_sections(list(extra_blocks(extras or Extras(), UNLIMITED))),
    )


def sweep_page(subject: str, found: SweepResult) -> str:
    """The page of a sweep, complete in itself too.

    Args:
        subject: the pipeline.
        found: its cells.
    """
    cells, *others = sweep_blocks(found, UNLIMITED)
    below = list(takewhile(lambda block: isinstance(block, Paragraph), others))
    profile = next((cell.profile for cell in found.cells if cell.profile is not None), None)
    return _rendered(
        "sweep.html.j2",
        subject=subject,
        axes=found.axes,
        format_setting=format_setting,
        below=below,
        cells=cells,
        growth=[_growth(group) for group in grouped(fit_growth(found))],
        machine=[] if profile is None else machine_facts(profile.machine),
    )


def _growth(group: list[CostGrowth]) -> dict[str, Any]:
    first = group[0]
    values = sorted({value for each in group for value in each.values})
    known = [dict(zip(each.values, each.step_us, strict=True)) for each in group]
    dearest = sorted(zip(group, known, strict=True), key=lambda pair: -max(pair[1].values()))
    lines = [
        (name_of(each), each.slope, [costs.get(value) for value in values])
        for each, costs in dearest[:_LINES]
    ]
    return {
        "axis": first.axis,
        "mode": first.mode,
        "others": named(first),
        "plot": growth_plot(first.axis, values, [(name, line) for name, _, line in lines]),
        "lines": [(name, slope) for name, slope, _ in lines],
        "table": next(b for b in growth_blocks(group, UNLIMITED) if isinstance(b, Table)),
    }


def _rendered(template: str, **values: Any) -> str:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(_FOLDER),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    style = _style("report.css") + _style("profile.css")
    text = environment.get_template(template).render(style=style, **values)
    return escape_control_characters(text, keep="\n\t")


def _style(name: str) -> str:
    return (_FOLDER / name).read_text(encoding="utf-8")


def _mode(mode: ModeProfile) -> dict[str, Any]:
    plots = [(f"{row.part.label} {row.part.lane}", row, times_plot(row)) for row in mode.rows]
    return {
        "mode": mode.mode,
        "rate": f"{micros(mode.step_us)} µs a step, {count(mode.frames_per_second)} frames/s",
        "facts": list(mode_facts(mode)),
        "flames": flame_chart(build_mean_step(mode)),
        "table": mode_table(mode),
        "plots": [(name, row, plot) for name, row, plot in plots if plot],
        "details": _sections(list(details(mode, UNLIMITED))),
    }


def _sections(blocks: list[Block]) -> list[dict[str, Any]]:
    """Headings with what stands below each."""
    found: list[dict[str, Any]] = []
    for block in blocks:
        if isinstance(block, Heading):
            found.append({"title": block.text, "aside": block.aside, "tables": [], "texts": []})
        elif isinstance(block, Table):
            found[-1]["tables"].append(block)
        elif isinstance(block, Paragraph):
            found[-1]["texts"].append(block)
    return found

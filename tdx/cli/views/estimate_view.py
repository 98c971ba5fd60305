"""The layout of how long a measurement would take."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from tdx.cli.output.view import Block, Cell, Heading, View
from tdx.cli.views.profile_columns import micros, number_table
from tdx.profiling.run import Estimate, ProfilePlan

_MIB = 1 << 20


def estimate_view(plan: ProfilePlan, estimates: Sequence[Estimate]) -> View:
    """Lay out how long each mode would take, and what its samples would take in a file.

    Args:
        plan: what would be measured.
        estimates: of each mode.
    """
    seconds = sum(each.seconds for each in estimates)
    records = [asdict(each) for each in estimates]
    data = {"subject": plan.subject, "seconds": seconds, "modes": records}

    def blocks(width: int) -> list[Block]:
        titles = ("mode", "steps", "µs/step", "about", "samples")
        rows = [
            [
                Cell(each.mode, "name"),
                Cell(f"{each.steps:,}"),
                Cell(micros(each.step_us)),
                Cell(_time(each.seconds)),
                Cell(f"{each.saved_bytes / _MIB:,.1f} MiB"),
            ]
            for each in estimates
        ]
        about = f"about {_time(seconds)}; nothing was measured"
        table = number_table(titles, rows, width, ("mode",), ("steps", "samples"))
        return [Heading(plan.subject, about, level=1), table]

    return View("profile-estimate", data, records, blocks)


def _time(seconds: float) -> str:
    if seconds < 1:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"

"""Growth of the cost of a step, with tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from rich.table import Table

from tests.benchmarks.bars import Bar, Contestant, Times

MICROSECOND = 1e-6
COLUMNS: tuple[Contestant, ...] = ("TorchRL", "tdx eager", "tdx")
TITLES: Mapping[Contestant, str] = {"tdx": "tdx planned"}


@dataclass(frozen=True)
class Growth:
    """Cost that is measured at several sizes.

    Args:
        name: Quantity that the cost grows with.
        work: Description of the timed work.
        of: Unit of the sizes, in the singular.
        sizes: Measured sizes.
        whole: Name of the work of ``size`` env steps, whose time the line is fitted to.
            Empty: the line is fitted to times per env step.
    """

    name: str
    work: str
    of: str
    sizes: tuple[int, ...]
    whole: str = ""

    def at(self, size: int) -> Bar:
        """Return the row of one size, without a goal."""
        return Bar(self.name, f"{self.work}, {size:,}", "µs", MICROSECOND, ())

    def line(self, contestant: Contestant, measured: Mapping[Bar, Times]) -> str:
        """Describe the line that is fitted to the times of a contestant."""
        points = [
            (size, float(np.median(seconds)) / MICROSECOND * (size if self.whole else 1))
            for size in self.sizes
            if (seconds := measured.get(self.at(size), {}).get(contestant)) is not None
        ]
        if len(points) < 2:
            return ""
        slope, start = fitted(points)
        return f"{start:.3g} + {slope:.3g} a {self.of}"


def fitted(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Fit a line with the least relative distances to points; return slope and intercept."""
    sizes, times = np.array(points, float).T
    slope, start = np.polyfit(sizes, times, 1, w=1 / times)
    return float(slope), float(start)


LENGTH = Growth("length of the chain", "rollout(2000)", "stage", (1, 2, 4, 8, 16, 32))
STEPS = Growth("steps", "chain 6", "step", (100, 1_000, 10_000), "rollout")
NATIVE = Growth(
    "batch size, native PendulumEnv", "chain 6", "env", (1, 8, 64, 512, 4096), "step of all"
)
SERIAL = Growth("batch size, SerialEnv", "chain 6", "env", (1, 8, 32), "step of all")
GROWTHS = (LENGTH, STEPS, NATIVE, SERIAL)


def growth_table(growth: Growth, measured: Mapping[Bar, Times]) -> Table | None:
    """Return a table with a row per size and the fitted line, or None without measurements."""
    if not any(measured.get(growth.at(size)) for size in growth.sizes):
        return None
    title = f"µs per env step, by {growth.name} ({growth.work})"
    table = Table(f"{growth.of}s", *(TITLES.get(each, each) for each in COLUMNS), title=title)
    for column in table.columns:
        column.justify = "right"
    for size in growth.sizes:
        times = measured.get(growth.at(size), {})
        cells = (times.get(contestant) for contestant in COLUMNS)
        shown = ("" if cell is None else f"{np.median(cell) / MICROSECOND:.3g}" for cell in cells)
        table.add_row(f"{size:,}", *shown)
    table.add_section()
    lines = (growth.line(contestant, measured) for contestant in COLUMNS)
    table.add_row(f"µs of a {growth.whole or 'step'}", *lines)
    return table

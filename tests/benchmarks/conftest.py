"""Time contestants in alternation, and print the table of targets at the end."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from pytest_benchmark.fixture import BenchmarkFixture
from rich.console import Console

from tests.benchmarks.bars import Bar, Contestant, results_table
from tests.benchmarks.growth import GROWTHS, growth_table

Measured = defaultdict[Bar, dict[Contestant, Sequence[float]]]
MEASURED = pytest.StashKey[Measured]()
Timed = Callable[[], object]
Compare = Callable[..., None]
Note = Callable[..., None]


def pytest_configure(config: pytest.Config) -> None:
    """Print only the table of targets, not the plugin's own."""
    torch.set_num_threads(1)
    measured: Measured = defaultdict(dict)
    config.stash[MEASURED] = measured
    config.option.benchmark_quiet = True
    # Warnings of an oracle or an old wrapper do not matter here.
    config.addinivalue_line("filterwarnings", "ignore")


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Print the tables."""
    measured = config.stash[MEASURED]
    console = Console(file=terminalreporter._tw._file, width=180)
    console.print(results_table(measured))
    for growth in GROWTHS:
        table = growth_table(growth, measured)
        if table is not None:
            console.print(table)


@pytest.fixture
def note(pytestconfig: pytest.Config) -> Note:
    """Add a figure to the table that was measured otherwise, or one for each round."""

    def noted(bar: Bar, contestant: Contestant, figure: float | Sequence[float]) -> None:
        figures = (figure,) if isinstance(figure, int | float) else figure
        pytestconfig.stash[MEASURED][bar][contestant] = figures

    return noted


@dataclass(frozen=True)
class Run:
    """What one contestant does in each round.

    Args:
        function: What is timed.
        units: Number of units of work in a call.
        before_each: Called before each call, not timed.
    """

    function: Timed
    units: int = 1
    before_each: Timed | None = None

    def seconds(self, clock: Callable[[], float]) -> float:
        """Return the time of one unit of work."""
        if self.before_each is not None:
            self.before_each()
        start = clock()
        self.function()
        return (clock() - start) / self.units


@pytest.fixture
def compare(benchmark: BenchmarkFixture, note: Note) -> Compare:
    """Time contestants in alternation.

    Each has one turn per round, and every other round goes in the opposite order. The CPU time of
    this process is measured, on which other programs have little influence; with ``wall`` the time
    on the clock, for work outside of this process.
    """

    def compared(
        bar: Bar, contestants: Mapping[Contestant, Run], *, rounds: int, wall: bool = False
    ) -> None:
        clock = time.perf_counter if wall else time.process_time
        order = list(contestants.items())
        times: dict[Contestant, list[float]] = {who: [] for who in contestants}

        def play_round() -> None:
            for who, run in order:
                times[who].append(run.seconds(clock))
            order.reverse()

        benchmark.group, benchmark.name = bar.name, f"{bar.name} {bar.work}"
        benchmark.pedantic(  # type: ignore[no-untyped-call]
            play_round, rounds=rounds, warmup_rounds=1
        )
        for who, seconds in times.items():
            # The first round warms up.
            kept = seconds[1:] or seconds
            benchmark.extra_info[who] = kept
            note(bar, who, kept)

    return compared

"""Fixtures that time contestants in alternation, and hooks that print the tables."""

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
    """Set up the table of targets and disable that of pytest-benchmark."""
    torch.set_num_threads(1)
    measured: Measured = defaultdict(dict)
    config.stash[MEASURED] = measured
    config.option.benchmark_quiet = True
    # Warnings of TorchRL or old wrappers are irrelevant here.
    config.addinivalue_line("filterwarnings", "ignore")


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Print the tables of targets and growth."""
    measured = config.stash[MEASURED]
    console = Console(file=terminalreporter._tw._file, width=180)
    console.print(results_table(measured))
    for growth in GROWTHS:
        table = growth_table(growth, measured)
        if table is not None:
            console.print(table)


@pytest.fixture
def note(pytestconfig: pytest.Config) -> Note:
    """Return a function that adds one figure, or one per round, to the table."""

    def noted(bar: Bar, contestant: Contestant, figure: float | Sequence[float]) -> None:
        figures = (figure,) if isinstance(figure, int | float) else figure
        pytestconfig.stash[MEASURED][bar][contestant] = figures

    return noted


@dataclass(frozen=True)
class Run:
    """Work of one contestant in each round.

    Args:
        function: Function to time.
        units: Number of units of work in a call.
        before_each: Called before each timed call.
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
    """Return a function that times contestants in alternation.

    Each contestant has one turn per round; every other round is in reverse order. The CPU time of
    this process is measured, which depends little on other programs. Work outside of this process
    needs another clock.
    """

    def compared(
        bar: Bar,
        contestants: Mapping[Contestant, Run],
        *,
        rounds: int,
        clock: Callable[[], float] = time.process_time,
    ) -> None:
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
            # The first round is a warm-up.
            kept = seconds[1:] or seconds
            benchmark.extra_info[who] = kept
            note(bar, who, kept)

    return compared

"""Time contestants in alternation, and print the table of targets at the end."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any

import pytest
import torch
from pytest_benchmark.fixture import BenchmarkFixture
from rich.console import Console

from tests.benchmarks.bars import Bar, Contestant, results_table
from tests.benchmarks.growth import GROWTHS, growth_table

TURNS = 3
Measured = defaultdict[Bar, dict[Contestant, float]]
MEASURED = pytest.StashKey[Measured]()
Timed = Callable[[], object]
Measure = Callable[..., None]
Note = Callable[[Bar, Contestant, float], None]


def pytest_configure(config: pytest.Config) -> None:
    """Print only the table of targets, not the plugin's own."""
    torch.set_num_threads(1)
    measured: Measured = defaultdict(dict)
    config.stash[MEASURED] = measured
    config.option.benchmark_quiet = True
    # Warnings of an oracle or an old wrapper do not matter here.
    config.addinivalue_line("filterwarnings", "ignore")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run each measurement several times, so that all contestants run under similar conditions."""
    if "turn" in metafunc.fixturenames:
        metafunc.parametrize("turn", range(TURNS))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give all contestants of a file their first turn before any second turn."""
    files = {path: place for place, path in enumerate(dict.fromkeys(item.path for item in items))}

    def order(item: pytest.Item) -> tuple[int, int]:
        call = getattr(item, "callspec", None)
        return files[item.path], 0 if call is None else call.params.get("turn", 0)

    items.sort(key=order)


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Print the tables."""
    measured = config.stash[MEASURED]
    console = Console(file=terminalreporter._tw._file, width=160)
    console.print(results_table(measured))
    for growth in GROWTHS:
        table = growth_table(growth, measured)
        if table is not None:
            console.print(table)


@pytest.fixture
def note(pytestconfig: pytest.Config) -> Note:
    """Add a figure to the table that was measured otherwise."""

    def noted(bar: Bar, contestant: Contestant, figure: float) -> None:
        pytestconfig.stash[MEASURED][bar][contestant] = figure

    return noted


@pytest.fixture
def measure(benchmark: BenchmarkFixture, pytestconfig: pytest.Config, turn: int) -> Measure:
    """Time a function for a contestant; the best round of all turns counts."""

    def timed(
        bar: Bar,
        contestant: Contestant,
        function: Timed,
        *,
        rounds: int,
        units: int = 1,
        before_each: Timed | None = None,
    ) -> None:
        benchmark.group = f"{bar.name} {bar.work}"
        benchmark.name = f"{contestant} {turn}"
        setup = None if before_each is None else lambda: (before_each(), None)[1]
        benchmark.pedantic(  # type: ignore[no-untyped-call]
            function, rounds=rounds, warmup_rounds=1, setup=setup
        )
        if benchmark.stats is not None:
            best = benchmark.stats.stats.min / units
            row = pytestconfig.stash[MEASURED][bar]
            row[contestant] = min(best, row.get(contestant, best))

    return timed

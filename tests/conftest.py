"""Settings of all tests: one thread, no display, fixed seeds."""

from __future__ import annotations

import os

# Set before torch and pygame are imported, here and in child processes.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("MKL_NUM_THREADS", "1")
os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
os.environ.setdefault("SDL_AUDIODRIVER", "dummy")
os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
# As `tdx.tui.open_app` does.
os.environ.setdefault("TEXTUAL_ANIMATIONS", "none")
# Ignore the configuration of the user.
os.environ["TDX_CONFIG"] = os.devnull
# Ignore installed plugins.
os.environ.setdefault("TDX_PLUGINS", "0")
# Hundreds of child processes would compile all of tdx each.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

import gc
import logging
import multiprocessing
import random
import signal
import sys
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from hypothesis import is_hypothesis_test, settings

from tests.programs import MUST_EXIST, examples, exhaustive, is_exhaustive

torch.set_num_threads(1)
sys.dont_write_bytecode = False

# Background jobs of a shell and their children ignore SIGINT, which tests send.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Imports create no garbage. `pytest_collection_finish` enables collection again.
gc.disable()

settings.register_profile(
    "tdx", deadline=None, derandomize=True, print_blob=True, max_examples=examples(100)
)
settings.load_profile("tdx")

MOST_WORKERS = 8


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Return the cores for ``-n auto``, and more in the tests with programs, where many wait.

    The number is limited, because each worker imports torch. ``worksteal`` lets each worker start
    at a different position, so that waiting tests run next to computing ones.
    """
    if config.option.dist == "no":
        config.option.dist = "worksteal"
    cores = len(os.sched_getaffinity(0))
    return min(cores + cores // 2 if is_exhaustive() else cores, MOST_WORKERS)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark tests with random examples; skip tests of the larger sample and of accelerators.

    With ``-k``, as for one transform, no case is left out.
    """
    larger = pytest.mark.skip(reason=f"part of the larger sample: {MUST_EXIST} is not set")
    numbers: Counter[str] = Counter()
    for item in items:
        sampled = item.get_closest_marker("sampled")
        if sampled is not None:
            test = item.nodeid.partition("[")[0]
            if numbers[test] % sampled.args[0] and not config.option.keyword:
                item.add_marker(exhaustive, append=False)
            numbers[test] += 1
        mark = item.get_closest_marker("programs")
        if mark is None and is_hypothesis_test(getattr(item, "obj", None)):
            item.add_marker("programs")
        elif mark is not None and mark.kwargs.get("only") and not is_exhaustive():
            item.add_marker(larger)
    if not torch.cuda.is_available():
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(pytest.mark.skip(reason="no accelerator on this machine"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Require the mark ``programs`` of a test that needs one: ``.ci/run`` selects by it."""
    report = yield
    error = None if call.excinfo is None else call.excinfo.value
    if getattr(error, "is_program_missing", False) and item.get_closest_marker("programs") is None:
        report.outcome = "failed"
        report.longrepr = f"mark it with pytest.mark.programs: {error}"
    return report


@pytest.hookimpl(wrapper=True)
def pytest_collect_file() -> Generator[None, list[pytest.Collector], list[pytest.Collector]]:
    """Look for doctests in the package alone: tests have none."""
    collectors = yield
    return [collector for collector in collectors if type(collector) is pytest.Module]


def pytest_collection_finish() -> None:
    """Exempt imported modules from garbage collection, which took a third of the test time.

    Reference counting frees most objects. A test that needs a collection calls ``gc.collect``.
    """
    gc.freeze()
    gc.set_threshold(10_000, 10, 10)
    gc.enable()


@pytest.fixture(autouse=True)
def _usual_start_method() -> None:
    """Restore the default start method: TorchRL sets ``spawn``, which takes seconds per
    process."""
    multiprocessing.set_start_method(None, force=True)


class _RecordList(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)


@pytest.fixture
def register_env(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, Any], None]:
    """Return a function that registers an env, by its ID and class, for the test."""

    def register(id_: str, creator: Any) -> None:
        spec = gymnasium.envs.registration.EnvSpec(id_, entry_point=creator)
        monkeypatch.setitem(gymnasium.registry, id_, spec)

    return register


@pytest.fixture
def log_records() -> Iterator[list[logging.LogRecord]]:
    """Return the list of records that reach the root logger during the test."""
    handler = _RecordList()
    logging.getLogger().addHandler(handler)
    yield handler.records
    logging.getLogger().removeHandler(handler)


@pytest.fixture(autouse=True)
def _fixed_seeds() -> None:
    """Seed all generators, so that tests do not depend on their order."""
    random.seed(0)
    np.random.seed(0)
    # `torch.manual_seed` also queues a call for CUDA, with a formatted traceback, in every test.
    torch.default_generator.manual_seed(0)

"""Settings of every test run: one thread, no screen, fixed seeds."""

from __future__ import annotations

import os

# Set before torch and pygame are imported, here and in the processes that tests start.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("MKL_NUM_THREADS", "1")
os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
os.environ.setdefault("SDL_AUDIODRIVER", "dummy")
os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
# As `tdx.tui.open_app` does.
os.environ.setdefault("TEXTUAL_ANIMATIONS", "none")
# Tests do not depend on the user's configuration.
os.environ["TDX_CONFIG"] = os.devnull
# Nor on the plugins that are installed.
os.environ.setdefault("TDX_PLUGINS", "0")

import gc
import multiprocessing
import random
import signal

import numpy as np
import pytest
import torch
from hypothesis import settings

torch.set_num_threads(1)

# A shell ignores SIGINT in background jobs, and so do their child processes: tests send SIGINT.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Imports leave no garbage. `pytest_collection_finish` enables it again.
gc.disable()

settings.register_profile("tdx", deadline=None, derandomize=True, print_blob=True)
settings.load_profile("tdx")

MOST_WORKERS = 8


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """``-n auto``: more than there are cores, for many tests wait for processes of their own.

    Each worker imports torch, so not without end. Each begins at another place, so that tests that
    wait run next to tests that compute.
    """
    if config.option.dist == "no":
        config.option.dist = "worksteal"
    cores = len(os.sched_getaffinity(0))
    return min(cores + cores // 2, MOST_WORKERS)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what needs an accelerator where there is none."""
    if not torch.cuda.is_available():
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(pytest.mark.skip(reason="no accelerator on this machine"))


def pytest_collection_finish() -> None:
    """Exempt imported modules from garbage collection, which took a third of the time of a test.

    Reference counting frees most objects. A test that needs a collection calls ``gc.collect``.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 10, 10)
    gc.enable()


@pytest.fixture(autouse=True)
def _usual_start_method() -> None:
    """Processes start as they do for users. TorchRL's import makes ``spawn`` the default, which
    takes seconds for each process."""
    multiprocessing.set_start_method(None, force=True)


@pytest.fixture(autouse=True)
def _fixed_seeds() -> None:
    """The same random numbers for a test, whatever ran before it."""
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)

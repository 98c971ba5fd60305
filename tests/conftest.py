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
import multiprocessing
import random
import signal
import sys

import numpy as np
import pytest
import torch
from hypothesis import settings

torch.set_num_threads(1)
sys.dont_write_bytecode = False

# Background jobs of a shell and their children ignore SIGINT, which tests send.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Imports create no garbage. `pytest_collection_finish` enables collection again.
gc.disable()

settings.register_profile("tdx", deadline=None, derandomize=True, print_blob=True)
settings.load_profile("tdx")

MOST_WORKERS = 8


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Return more workers than cores for ``-n auto``, because many tests wait for processes.

    The number is limited, because each worker imports torch. ``worksteal`` lets each worker start
    at a different position, so that waiting tests run next to computing ones.
    """
    if config.option.dist == "no":
        config.option.dist = "worksteal"
    cores = len(os.sched_getaffinity(0))
    return min(cores + cores // 2, MOST_WORKERS)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip tests that need an accelerator on machines without one."""
    if not torch.cuda.is_available():
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(pytest.mark.skip(reason="no accelerator on this machine"))


def pytest_collection_finish() -> None:
    """Exempt imported modules from garbage collection, which took a third of the test time.

    Reference counting frees most objects. A test that needs a collection calls ``gc.collect``.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 10, 10)
    gc.enable()


@pytest.fixture(autouse=True)
def _usual_start_method() -> None:
    """Restore the default start method: TorchRL sets ``spawn``, which takes seconds per
    process."""
    multiprocessing.set_start_method(None, force=True)


@pytest.fixture(autouse=True)
def _fixed_seeds() -> None:
    """Seed all generators, so that tests do not depend on their order."""
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)

"""What some tests need beside the extras: shells, a browser, git, a compiler, two libraries."""

from __future__ import annotations

import importlib.util
import os
import shutil
from typing import Literal, NoReturn

import pytest

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
MUST_EXIST = "TDX_TEST_PROGRAMS"
"""Environment variable that makes a missing program a failure; ``.ci/run`` installs them all."""


def is_exhaustive() -> bool:
    """Return True in the tests with programs of ``.ci/run``, which run larger samples."""
    return bool(os.environ.get(MUST_EXIST))


exhaustive = pytest.mark.programs(only=True)
"""Mark of tests that run only with programs, because they take a third of a second or more."""


def examples(most: int) -> int:
    """Return the number of random examples of a test: ``most`` in the tests with programs."""
    return most if is_exhaustive() else max(most // 5, 5)


def sampled(every: int) -> pytest.MarkDecorator:
    """Return a mark of a parametrized test of which only one case in ``every`` runs by default.

    Args:
        every: A number that is coprime to periods of the cases.
    """
    return pytest.mark.sampled(every)


def require_program(name: str, *alternatives: str) -> str:
    """Return the path of a program; skip the running test, naming the program, if it is missing.

    Args:
        name: Program to look for on the ``PATH``.
        alternatives: Programs that serve as well.
    """
    for program in (name, *alternatives):
        path = shutil.which(program)
        if path is not None:
            return path
    _miss(name)


def require_package(
    name: Literal[
        "lerobot",
        "onnxruntime",
        "onnxscript",
        "pettingzoo",
        "pufferlib",
        "supersuit",
        "tianshou",
        "tree",
    ],
) -> None:
    """Skip the running test if a library is missing.

    The requirements of LeRobot and Tianshou exclude versions that tdx is tested with, so the extra
    ``test`` has neither; ``tests/lerobot.txt`` and ``tests/tianshou.txt`` say how to install them,
    the latter with PettingZoo and SuperSuit. ``tests/rllib.txt`` does so for RLlib, which imports
    ``tree``. PufferLib has no wheels; its build downloads sources.
    """
    if importlib.util.find_spec(name) is None:
        _miss(name)


def _miss(name: str) -> NoReturn:
    reason = f"{name} is not installed"
    if is_exhaustive():
        pytest.fail(f"{reason}, and {MUST_EXIST} is set", pytrace=False)
    skipped = pytest.skip.Exception(reason)
    # `tests/conftest.py` checks the mark of a test that is skipped with it.
    vars(skipped)["is_program_missing"] = True
    raise skipped

"""Programs beside Python that some tests need: shells, a browser, git, a compiler."""

from __future__ import annotations

import os
import shutil

import pytest

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
MUST_EXIST = "TDX_TEST_PROGRAMS"
"""Environment variable that makes a missing program a failure; ``.ci/run`` installs them all."""


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
    reason = f"{name} is not installed"
    if os.environ.get(MUST_EXIST):
        pytest.fail(f"{reason}, and {MUST_EXIST} is set", pytrace=False)
    pytest.skip(reason)

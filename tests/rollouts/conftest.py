"""Dumps of tests lie in memory where that is possible: a real disk makes them wait."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

IN_MEMORY = "/dev/shm"


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """A folder of the test's own."""
    root = IN_MEMORY if os.access(IN_MEMORY, os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="tdx-", dir=root) as folder:
        yield Path(folder)

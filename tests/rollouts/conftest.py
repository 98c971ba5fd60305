"""Fixtures of the tests of dumps."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.rollouts.recordings import in_memory


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """Yield a temporary folder in memory."""
    with in_memory() as folder:
        yield Path(folder)

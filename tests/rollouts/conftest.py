"""Where the tests of dumps write."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.rollouts.recorded import in_memory


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """A folder of the test's own."""
    with in_memory() as folder:
        yield Path(folder)

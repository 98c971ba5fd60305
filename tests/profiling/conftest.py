"""What is there before a test is no garbage: to look through it takes longer than the tests do."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True, scope="module")
def nothing_to_collect() -> Iterator[None]:
    gc.freeze()
    yield
    gc.unfreeze()

"""Freeze objects that exist before a test, as collecting them takes longer than the tests."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True, scope="module")
def nothing_to_collect() -> Iterator[None]:
    gc.freeze()
    yield
    gc.unfreeze()

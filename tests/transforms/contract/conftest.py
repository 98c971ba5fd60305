"""Runs each test of this folder for each transform.

Tests with ``name`` put it into an env; tests with ``any_name`` do not.
"""

from __future__ import annotations

import pytest

from tests.transforms.contract.examples import NAMES, online


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "name" in metafunc.fixturenames:
        metafunc.parametrize("name", online())
    if "any_name" in metafunc.fixturenames:
        metafunc.parametrize("any_name", NAMES)


@pytest.fixture(autouse=True)
def _stopped_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stop the clock, so that rollouts with measured times can be compared."""
    monkeypatch.setattr("tdx.transforms.episode.timer.perf_counter", lambda: 0.0)

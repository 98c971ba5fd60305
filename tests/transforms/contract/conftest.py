"""Runs every test of this folder that takes ``name`` for every transform there is."""

from __future__ import annotations

import pytest

from tests.transforms.contract.examples import NAMES


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "name" in metafunc.fixturenames:
        metafunc.parametrize("name", NAMES)

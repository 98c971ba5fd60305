"""P7: building an env and computing its specs."""

from __future__ import annotations

import pytest

from tests.benchmarks.bars import BUILD
from tests.benchmarks.chains import Library, chain_6_env
from tests.benchmarks.conftest import Measure


@pytest.mark.parametrize("library", ["tdx", "TorchRL"])
def test_build(measure: Measure, library: Library) -> None:
    spec = chain_6_env(library).output_spec
    measure(BUILD, library, lambda: chain_6_env(library).output_spec, rounds=20)
    assert spec["full_observation_spec", "observation"].shape == (12,)

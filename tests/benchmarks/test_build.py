"""P7: building an env and computing its specs."""

from __future__ import annotations

from tests.benchmarks.bars import BUILD
from tests.benchmarks.chains import chain_6_env, libraries
from tests.benchmarks.conftest import Compare, Run


def test_build(compare: Compare) -> None:
    spec = chain_6_env("tdx").output_spec
    assert spec["full_observation_spec", "observation"].shape == (12,)
    runs = {
        library: Run(lambda library=library: chain_6_env(library).output_spec)
        for library in libraries()
    }
    compare(BUILD, runs, rounds=20)

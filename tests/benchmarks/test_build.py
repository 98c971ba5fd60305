"""P7: building an env and computing its specs."""

from __future__ import annotations

from tests.benchmarks.bars import BUILD
from tests.benchmarks.chains import Library, chain_6_env, libraries
from tests.benchmarks.conftest import Compare, Run


def test_time_to_build_an_env(compare: Compare) -> None:
    spec = chain_6_env("tdx").output_spec
    assert spec["full_observation_spec", "observation"].shape == (12,)
    compare(BUILD, {library: build(library) for library in libraries()}, rounds=20)


def build(library: Library) -> Run:
    """Return a run that creates the env and computes its specs."""
    return Run(lambda: chain_6_env(library).output_spec)

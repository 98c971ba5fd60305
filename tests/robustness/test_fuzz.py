"""A sample of the fuzzer; ``python -m tests.robustness.fuzz`` runs thousands of inputs.

The tests with programs (``.ci/run``) have the larger sample.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.programs import exhaustive, is_exhaustive
from tests.robustness.cases import make_case
from tests.robustness.fuzz import answer, faults
from tests.robustness.seeds import make_seeds

BLOCK = 12
BLOCKS = 5 if is_exhaustive() else 1


@pytest.fixture(scope="module")
def seeds(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_seeds(tmp_path_factory.mktemp("seeds"))


@pytest.mark.parametrize("block", range(BLOCKS))
@pytest.mark.programs
@exhaustive
def test_damaged_input_has_no_faults(block: int, seeds: Path, tmp_path: Path) -> None:
    wrong = {}
    for number in range(block * BLOCK, (block + 1) * BLOCK):
        folder = tmp_path / str(number)
        folder.mkdir()
        found = answer(make_case(number, seeds, folder))
        if bad := list(faults(found)):
            wrong[number] = (bad, found.err[:500])
    assert not wrong

"""A sample of the fuzzer; ``python -m tests.robustness.fuzz`` runs thousands of inputs."""

from __future__ import annotations

from pathlib import Path

from tests.programs import exhaustive
from tests.robustness.cases import make_case
from tests.robustness.fuzz import answer, faults
from tests.robustness.seeds import make_seeds

INPUTS = 30


@exhaustive
def test_damaged_input_has_no_faults(tmp_path: Path) -> None:
    seeds = tmp_path / "seeds"
    seeds.mkdir()
    make_seeds(seeds)
    wrong = {}
    for number in range(INPUTS):
        folder = tmp_path / str(number)
        folder.mkdir()
        found = answer(make_case(number, seeds, folder))
        if bad := list(faults(found)):
            wrong[number] = (bad, found.err[:500])
    assert not wrong

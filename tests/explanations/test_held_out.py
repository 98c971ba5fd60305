"""Faults in real stacks are explained with the stage, the kind and the numbers, and no other stage.

``TDX_MUTATIONS=all`` explains all of them instead of one of each library.
"""

from __future__ import annotations

import os
from typing import get_args

import pytest

import tdx
from tdx.compare.model import Part
from tests.explanations.held_out import CASES, is_explained
from tests.programs import sampled

MISSED = {
    "gray levels binarized": "no kind is a threshold",
    "LeRobot: keys swapped": "another order of the keys of samples counts as a difference",
    "LeRobot: bfloat16": "NumPy, and so the checkpoint that is opened, does not have the dtype",
}
"""Cases that are not explained, with the reason."""
SAMPLED = (
    "normalized on reset only",
    "SB3: no frame stack, fresh statistics",
    "TorchRL: extra clip at 1 and other mean",
    "LeRobot: float16 and no crop",
    "LeRobot: 0 to 255 and no normalizer",
    "Dreamer: symlog of the rewards",
    "zoo: actions smoothed",
    "camera: two steps late",
    "DMC: action repeated four times",
)
NAMES = CASES if os.environ.get("TDX_MUTATIONS") == "all" else SAMPLED


@pytest.mark.filterwarnings("ignore:.*precision lowered by casting")
@pytest.mark.parametrize("name", [name for name in NAMES if name not in MISSED])
@sampled(3)
def test_faults_of_real_stacks_are_explained(name: str) -> None:
    case = CASES[name]
    contract = tdx.freeze(case.reference(), compare=get_args(Part))
    report = tdx.check_contract(case.target(), contract)
    assert is_explained(case, report), [cause.sentence for cause in report.causes]

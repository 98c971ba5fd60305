"""Labeled faults of five libraries are named with their stage and their kind.

``TDX_MUTATIONS=all`` measures all instead of a few.
"""

from __future__ import annotations

import os

import pytest

from tests.explanations.mutations import (
    LIBRARIES,
    clean_pairs,
    double_mutations,
    single_mutations,
)
from tests.explanations.scoring import compare, names_kind, names_stage

IS_WHOLE = os.environ.get("TDX_MUTATIONS") == "all"
SINGLE, DOUBLE, CLEAN = (30, 30, 30) if IS_WHOLE else (3, 1, 1)
ALLOWED = 3 if IS_WHOLE else 1
"""Faults of a library whose kind may be missed: statistics that a stage keeps out of sight, and
orders of functions that cannot be told apart."""


@pytest.mark.parametrize("library", LIBRARIES)
def test_single_faults_are_named(library: str) -> None:
    missed = []
    for mutation in single_mutations(library, 0, SINGLE):
        report = compare(mutation)
        (fault,) = mutation.faults
        if fault.observable:
            assert not report.same, mutation.name
            if not (names_stage(fault, report) and names_kind(fault, report)):
                missed.append((mutation.name, [each.sentence for each in report.differences]))
    assert len(missed) <= ALLOWED, missed


@pytest.mark.parametrize("library", LIBRARIES)
def test_the_first_of_two_faults_is_named(library: str) -> None:
    missed = []
    for mutation in double_mutations(library, 0, DOUBLE):
        report = compare(mutation)
        observable = [fault for fault in mutation.faults if fault.observable]
        assert report.same is not bool(observable), mutation.name
        if observable and not any(names_stage(fault, report) for fault in observable):
            missed.append((mutation.name, [each.sentence for each in report.differences]))
    assert len(missed) <= ALLOWED, missed


@pytest.mark.parametrize("library", LIBRARIES)
def test_equal_stacks_raise_no_alarm(library: str) -> None:
    for mutation in clean_pairs(library, 0, CLEAN):
        assert compare(mutation).same, mutation.name

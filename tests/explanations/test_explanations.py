"""Labeled faults of five libraries are named with their stage, their kind and their numbers.

What a report says is taken at its word: its edits make the target of the reference in another
rollout, and the check passes after its steps are taken. ``TDX_MUTATIONS=all`` measures all
mutations instead of a few.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

import pytest

from tests.explanations.mutations import (
    LIBRARIES,
    Mutation,
    clean_pairs,
    double_mutations,
    held_out_mutations,
    single_mutations,
)
from tests.explanations.scoring import (
    compare,
    names_kind,
    names_parameters,
    names_stage,
    passes_corrected,
    reproduces,
)

IS_WHOLE = os.environ.get("TDX_MUTATIONS") == "all"
SINGLE, OTHERS, DOUBLE, CLEAN = (30, 12, 30, 30) if IS_WHOLE else (3, 1, 1, 1)
MEASURES = {"names": 0.9, "parameters": 0.85, "reproduces": 0.8, "passes": 0.75}
"""Share of the observable faults of each library that a report gets right at least."""


def _missed(mutations: Sequence[Mutation]) -> dict[str, list[object]]:
    """Return the mutations that each measure misses, and how many are observable."""
    missed: dict[str, list[object]] = {name: [] for name in MEASURES}
    observable = 0
    for mutation in mutations:
        report = compare(mutation)
        (fault,) = mutation.faults
        if not fault.observable:
            assert report.same, mutation.name
            continue
        observable += 1
        assert not report.same, mutation.name
        results = {
            "names": names_stage(fault, report) and names_kind(fault, report),
            "parameters": names_parameters(fault, report),
            "reproduces": reproduces(mutation, report),
            "passes": passes_corrected(mutation, report),
        }
        for name, is_right in results.items():
            if not is_right:
                missed[name].append((mutation.name, [each.sentence for each in report.causes]))
    return {
        name: rest
        for name, rest in missed.items()
        # One may be missed anywhere: a library has too few of them for the shares.
        if len(rest) > max(1, round((1 - MEASURES[name]) * observable))
    }


@pytest.mark.parametrize("library", LIBRARIES)
def test_single_faults_are_named_and_corrected(library: str) -> None:
    missed = _missed(single_mutations(library, 0, SINGLE))
    assert not missed, missed


@pytest.mark.parametrize("library", [name for name in LIBRARIES if name != "lerobot"])
def test_faults_of_other_kinds_are_named_and_corrected(library: str) -> None:
    missed = _missed(held_out_mutations(library, 7, OTHERS))
    assert not missed, missed


@pytest.mark.parametrize("library", LIBRARIES)
def test_the_first_of_two_faults_is_named(library: str) -> None:
    missed = []
    for mutation in double_mutations(library, 0, DOUBLE):
        report = compare(mutation)
        observable = [fault for fault in mutation.faults if fault.observable]
        assert report.same is not bool(observable), mutation.name
        if observable and not any(names_stage(fault, report) for fault in observable):
            missed.append((mutation.name, [each.sentence for each in report.differences]))
    assert len(missed) <= (3 if IS_WHOLE else 1), missed


@pytest.mark.parametrize("library", LIBRARIES)
def test_equal_stacks_raise_no_alarm(library: str) -> None:
    for mutation in clean_pairs(library, 0, CLEAN):
        assert compare(mutation).same, mutation.name

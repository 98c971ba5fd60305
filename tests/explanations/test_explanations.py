"""Labeled faults of five libraries are named with their stage, their kind and their numbers.

What a report says is taken at its word: its edits make the target of the reference in another
rollout, and the check passes after its steps are taken. ``TDX_MUTATIONS=all`` measures all
mutations instead of a few.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

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
    record_reference,
    reproduces,
)
from tests.programs import exhaustive

IS_WHOLE = os.environ.get("TDX_MUTATIONS") == "all"
SINGLE, OTHERS, DOUBLE, CLEAN = (30, 12, 30, 30) if IS_WHOLE else (1, 1, 1, 1)
MEASURES = {"names": 0.95, "parameters": 0.92, "reproduces": 0.95, "passes": 0.95}
"""Share of the observable faults of each library that a report gets right at least."""
MISPLACED, WRONG = 2, 3
"""Pairs of faults of each library whose stages, or whose effect, may be missed."""
HELD_OUT = {"names": 0.9, "parameters": 0.85, "reproduces": 0.8, "passes": 0.75}
"""The same for kinds of faults that the engine was not made for."""


def _sampled(*libraries: str) -> tuple[str, ...]:
    """Return a few libraries, which a run of all mutations extends to all of them."""
    return tuple(LIBRARIES) if IS_WHOLE else libraries


def _missed(
    mutations: Sequence[Mutation], floors: Mapping[str, float] = MEASURES
) -> dict[str, list[object]]:
    """Return the mutations that each measure misses, if they are more than its floor allows."""
    missed: dict[str, list[object]] = {name: [] for name in floors}
    observable = 0
    for mutation in mutations:
        contract = record_reference(mutation)
        report = compare(mutation, contract=contract)
        (fault,) = mutation.faults
        if not fault.observable:
            # An argument differs all the same.
            assert report.same or all(
                "no difference of values is observed" in cause.sentence for cause in report.causes
            ), mutation.name
            continue
        observable += 1
        assert not report.same, mutation.name
        results = {
            "names": names_stage(fault, report) and names_kind(fault, report),
            "parameters": names_parameters(fault, report),
            "reproduces": reproduces(mutation, report),
            "passes": passes_corrected(mutation, report, contract),
        }
        for name, is_right in results.items():
            if not is_right:
                missed[name].append((mutation.name, [each.sentence for each in report.causes]))
    return {
        name: rest
        for name, rest in missed.items()
        # One may be missed anywhere: a library has too few of them for the shares.
        if len(rest) > max(1, round((1 - floors[name]) * observable))
    }


@pytest.mark.parametrize("library", _sampled("tdx"))
@exhaustive
def test_single_faults_are_named_and_corrected(library: str) -> None:
    missed = _missed(single_mutations(library, 0, SINGLE))
    assert not missed, missed


@pytest.mark.parametrize("library", [name for name in _sampled("gymnasium") if name != "lerobot"])
@exhaustive
def test_faults_of_other_kinds_are_named_and_corrected(library: str) -> None:
    missed = _missed(held_out_mutations(library, 7, OTHERS), HELD_OUT)
    assert not missed, missed


@pytest.mark.parametrize("library", _sampled("lerobot"))
@exhaustive
def test_two_faults_are_found_and_predict_another_rollout(library: str) -> None:
    misplaced, wrong = [], []
    for mutation in double_mutations(library, 0, DOUBLE):
        report = compare(mutation)
        observable = [fault for fault in mutation.faults if fault.observable]
        assert report.same is not bool(observable), mutation.name
        sentences = [each.sentence for each in report.differences]
        if not all(names_stage(fault, report) for fault in observable):
            misplaced.append((mutation.name, sentences))
        if observable and not reproduces(mutation, report):
            wrong.append((mutation.name, sentences))
    assert len(misplaced) <= (MISPLACED if IS_WHOLE else 0), misplaced
    assert len(wrong) <= (WRONG if IS_WHOLE else 0), wrong


@pytest.mark.parametrize("library", _sampled("sb3", "torchrl"))
@exhaustive
def test_equal_stacks_raise_no_alarm(library: str) -> None:
    for mutation in clean_pairs(library, 0, CLEAN):
        assert compare(mutation).same, mutation.name

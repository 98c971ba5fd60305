"""Generated mutations build, open, and differ in their values if and only if their labels say so.

``TDX_MUTATIONS=all`` tests all instead of one of each kind per library.
"""

from __future__ import annotations

import os
from collections.abc import Callable

import numpy as np
import pytest

import tdx
from tests.explanations.mutations import (
    LIBRARIES,
    Mutation,
    clean_pairs,
    double_mutations,
    single_mutations,
)
from tests.explanations.mutations.stepping import step_by_hand

TESTED = 30 if os.environ.get("TDX_MUTATIONS") == "all" else 1
TOLERANCE = 2e-5


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("make", [single_mutations, double_mutations, clean_pairs])
def test_values_differ_where_labels_say_so(
    library: str, make: Callable[..., list[Mutation]]
) -> None:
    for mutation in make(library, 0, TESTED):
        stages = tdx.open_stack(mutation.reference()).stages
        tdx.open_stack(mutation.target())
        assert all(fault.stage < len(stages) for fault in mutation.faults), mutation.name
        assert _differs(mutation) is mutation.observable, (mutation.name, mutation.faults)


def _differs(mutation: Mutation) -> bool:
    one, other = (
        step_by_hand(mutation.library, make()) for make in (mutation.reference, mutation.target)
    )
    if [row.keys() for row in one] != [row.keys() for row in other]:
        return True
    for key in one[0]:
        first, second = ([row[key] for row in rows] for rows in (one, other))
        if [value.shape for value in first] != [value.shape for value in second]:
            return True
        largest = max(float(np.abs(np.stack(first).astype(np.float64)).max()), 1e-6)
        pairs = zip(first, second, strict=True)
        if any(np.abs(a.astype(np.float64) - b).max() > TOLERANCE * largest for a, b in pairs):
            return True
    return False

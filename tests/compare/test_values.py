"""What counts as equal, and how a difference is described."""

from __future__ import annotations

import math

import pytest
import torch

from tdx.compare.values import (
    EXACT,
    Tolerance,
    compare_entries,
    compare_tensors,
    differing_elements,
)

LOOSE = Tolerance(1e-2, 1e-3)


@pytest.mark.parametrize(
    ("a", "b", "tolerance", "expected"),
    [
        ([1.0, math.nan], [1.0, math.nan], EXACT, [False, False]),
        ([1.0, math.nan], [math.nan, 1.0], LOOSE, [True, True]),
        ([math.inf, -math.inf], [math.inf, math.inf], LOOSE, [False, True]),
        ([math.inf, 1.0], [1.0, math.inf], LOOSE, [True, True]),
        ([100.0, 0.0], [100.9, 0.0009], LOOSE, [False, False]),
        ([100.0, 0.0], [102.0, 0.0011], LOOSE, [True, True]),
        ([0.0, -0.0], [-0.0, 0.0], EXACT, [False, False]),
    ],
)
def test_floats_are_equal_within_a_tolerance(
    a: list[float], b: list[float], tolerance: Tolerance, expected: list[bool]
) -> None:
    assert differing_elements(torch.tensor(a), torch.tensor(b), tolerance).tolist() == expected


def test_integers_are_equal_exactly_or_within_the_absolute_part() -> None:
    large = torch.tensor([2**60, 500])
    assert differing_elements(large, large + 1, Tolerance(0.5)).tolist() == [True, True]
    pixels = torch.tensor([10, 200], dtype=torch.uint8)
    assert differing_elements(pixels, pixels + 1, Tolerance(0.0, 1.0)).tolist() == [False, False]
    short = torch.tensor([1, 2], dtype=torch.uint16)
    assert differing_elements(short, torch.tensor([1, 3])).tolist() == [False, True]


def test_change_names_size_step_and_elements() -> None:
    a = torch.zeros(2, 5, 3)
    b = a.clone()
    b[1, 3, 2], b[0, 4, 0] = 0.5, 2.0
    change = compare_tensors(a, b, step_dim=1)
    assert change is not None
    assert (change.kind, change.size, change.step, change.sides) == ("value", 2.0, 3, ("0", "2"))


def test_entries_of_each_kind() -> None:
    ones = torch.ones(2)
    a = {
        "same": ones,
        "gone": ones,
        "shape": ones,
        "dtype": ones,
        "text": "go",
        "nan": ones * math.nan,
    }
    b = {
        **{"same": ones.clone(), "new": ones, "shape": ones[:1], "dtype": ones.double()},
        **{"text": "stop", "nan": ones * math.nan},
    }
    kinds = {key: change and change.kind for key, change in compare_entries(a, b).items()}
    assert kinds == {
        **{"same": None, "gone": "missing", "shape": "spec", "dtype": "dtype", "text": "value"},
        **{"nan": None, "new": "extra"},
    }

"""Detection of stored values that violate their spec."""

from __future__ import annotations

import pytest
import torch

from tdx import Binary, Bounded, Composite, EnvBase, OneHot, TensorSpec, Unbounded
from tdx.rollouts.dump.entries import SpecEntry, describe_specs, describe_violation


def entry_of(spec: TensorSpec) -> SpecEntry:
    """Return the description of a spec in a manifest."""

    class Env(EnvBase):
        def __init__(self) -> None:
            super().__init__()
            self.observation_spec = Composite(seen=spec)

    return next(entry for entry in describe_specs(Env()) if entry["key"] == ["seen"])


BOUNDED = Bounded(-1.0, 1.0, (2,))
ONE_HOT = OneHot(3, dtype=torch.int64)
NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("spec", "rows", "problem"),
    [
        (BOUNDED, [[0, 1], [-1, 0.5]], None),
        (
            BOUNDED,
            [[0, 1], [-1, 1.5]],
            "it holds 1.5, outside [-1, 1], first at step 1",
        ),
        (
            BOUNDED,
            [[-INF, 1], [-2, 0]],
            "it holds -inf, outside [-1, 1], first at step 0",
        ),
        (BOUNDED, [[0, INF]], "it holds inf, outside [-1, 1], first at step 0, in 1 value"),
        (BOUNDED, [[0, 0], [0, NAN]], "it holds nan, outside [-1, 1], first at step 1"),
        (Unbounded((2,)), [[NAN, INF]], None),
        (Bounded(torch.tensor([0.0, -INF]), torch.tensor([1.0, INF])), [[0.5, INF]], None),
    ],
)
def test_violations_of_float_values(
    spec: TensorSpec, rows: list[list[float]], problem: str | None
) -> None:
    found = describe_violation(torch.tensor(rows), entry_of(spec))
    assert found is None if problem is None else str(found).startswith(problem)


@pytest.mark.parametrize(
    ("spec", "rows", "problem"),
    [
        (ONE_HOT, [[0, 1, 0], [1, 0, 0]], None),
        (
            OneHot(3, dtype=torch.int64),
            [[0, 1, 0], [1, 1, 0]],
            "a value is outside the one-hot vectors of 3 elements, first at step 1",
        ),
        (
            OneHot(3, dtype=torch.int64),
            [[0, 2, 0]],
            "a value is outside the one-hot vectors of 3 elements, first at step 0",
        ),
        (
            Binary(2, dtype=torch.int64),
            [[0, 1], [3, 4]],
            "a value is outside the categories 0 to 1, first at step 1, in 2 values",
        ),
    ],
)
def test_violations_of_integer_values(
    spec: TensorSpec, rows: list[list[int]], problem: str | None
) -> None:
    found = describe_violation(torch.tensor(rows), entry_of(spec))
    assert found is None if problem is None else str(found).startswith(problem)


def test_other_shape_or_dtype_is_a_violation() -> None:
    spec = entry_of(BOUNDED)
    assert describe_violation(torch.zeros(4, 3), spec) == (
        "its shape is (4, 3), its spec says (4, 2)"
    )
    assert describe_violation(torch.zeros(4, 2, dtype=torch.float64), spec) == (
        "its dtype is torch.float64, its spec says torch.float32"
    )

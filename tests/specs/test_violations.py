"""Violations of specs by entries: which element, of which key, in data of any batch size."""

from __future__ import annotations

import pytest
import torch
from tensordict import TensorDict

from tdx import Binary, Bounded, Categorical, MultiCategorical, MultiOneHot, OneHot, TensorSpec
from tdx.specs.violations import elements_outside, find_violations

NAN = float("nan")


def test_a_violation_names_the_first_element_outside() -> None:
    data = TensorDict(a=torch.tensor([[0.0, 1.0], [0.5, 3.0], [NAN, 0.0]]), batch_size=[3])
    (violation,) = find_violations(data, {"a": Bounded(0.0, 1.0, (3, 2))}, "step")
    assert (violation.code, violation.key, violation.index) == ("bounds", "a", (1, 1))
    assert (violation.value, violation.count) == (3.0, 2)
    assert violation.message == "it holds 3 after a step, outside [0, 1]"


def test_a_chunk_is_compared_with_the_expanded_spec() -> None:
    chunk = {"a": torch.tensor([[[0], [1]], [[2], [0]]])}
    spec = Categorical(2, (2, 1))
    (violation,) = find_violations(chunk, {"a": spec.expand(2, 2, 1)}, "recording")
    assert (violation.index, violation.value) == ((1, 0, 0), 2)
    assert violation.message == "a value is outside the categories 0 to 1"


def test_missing_and_undeclared_keys() -> None:
    data = {"b": torch.zeros(1), "c": torch.zeros(1)}
    violations = find_violations(data, {"a": Bounded(0.0, 1.0, (1,))}, "reset", allowed=("c",))
    assert [(violation.code, violation.key) for violation in violations] == [
        ("missing", "a"),
        ("undeclared", "b"),
    ]


@pytest.mark.parametrize(
    ("spec", "value", "outside"),
    [
        (Bounded(0.0, 1.0, (2,)), [1.0000001, 1.1], [False, True]),
        (Categorical(3, (2,), mask=[True, False, True]), [1, 2], [True, False]),
        (MultiCategorical([2, 3]), [2, 2], [True, False]),
        (OneHot(3, dtype=torch.int64), [1, 1, 0], [True, True, True]),
        (MultiOneHot([2, 2], dtype=torch.int64), [1, 1, 0, 1], [True, True, False, False]),
        (Binary(2), [1, 2], [False, True]),
    ],
)
def test_elements_outside(spec: TensorSpec, value: list[float], outside: list[bool]) -> None:
    mask = elements_outside(spec, torch.tensor(value, dtype=spec.dtype))
    assert mask is not None
    assert mask.tolist() == outside

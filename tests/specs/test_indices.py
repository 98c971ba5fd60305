"""Indices of specs: forms that a tensor accepts, and those of NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from tdx.foundation.errors import SpecIndexError
from tdx.specs import (
    Binary,
    Bounded,
    Categorical,
    Composite,
    MultiCategorical,
    MultiOneHot,
    OneHot,
    Unbounded,
)
from tdx.specs.arguments import index_names, parse_index
from tests.specs import kinds

BATCHED: list[Any] = [
    Unbounded((4, 3, 5)),
    Bounded(torch.zeros(4, 3, 5), torch.rand(4, 3, 5) + 1),
    Categorical(7, (4, 3, 5)),
    Binary(5, (4, 3, 5)),
    OneHot(5, (4, 3, 5)),
    MultiCategorical([2, 3], (4, 3, 2)),
    MultiOneHot([2, 3], (4, 3, 5)),
    Composite(a=Unbounded((4, 3, 5)), b=OneHot(2, (4, 3, 2)), shape=(4, 3)),
]


@pytest.mark.parametrize("spec", BATCHED, ids=lambda spec: type(spec).__name__)
@pytest.mark.parametrize(
    ("index", "shape"),
    [
        ([0, 2], (2, 3)),
        ([[0, 2], [1, 1]], (2, 2, 3)),
        ([[[0]]], (1, 1, 1, 3)),
        (range(3), (3, 3)),
        (np.array([[1, 2]]), (1, 2, 3)),
        (np.array([True, False, True, False]), (2, 3)),
        (torch.tensor([3, 0]), (2, 3)),
        ([], (0, 3)),
        (((0, 1), (2, 0)), (2,)),
        (([0, 1], 1), (2,)),
        ((slice(1, 3), (0, 2)), (2, 2)),
        ((slice(None), [0]), (4, 1)),
        (slice(None, None, -1), (4, 3)),
        (slice(10, 1, -1), (2, 3)),
        ((slice(None), slice(None, None, -2)), (4, 2)),
        ((1, ...), (3,)),
        ((None, slice(2)), (1, 2, 3)),
        (slice(10, None), (0, 3)),
        (np.int64(2), (3,)),
    ],
    ids=repr,
)
def test_batch_dimensions_are_indexed_as_in_numpy(
    spec: Any, index: Any, shape: tuple[int, ...]
) -> None:
    indexed = spec[index]
    own = () if isinstance(spec, Composite) else spec.shape[2:]
    assert indexed.shape == (*shape, *own)
    assert indexed.is_in(indexed.rand())


def test_bounds_follow_the_index() -> None:
    low = torch.arange(12.0).reshape(4, 3)
    spec = Bounded(low, 99.0, (4, 3))
    assert torch.equal(spec[::-1].low, low.flip(0))
    assert torch.equal(spec[[[0, 3]], (2, 1)].low, torch.tensor([[2.0, 10.0]]))
    assert torch.equal(spec[:, range(2)].low, low[:, :2])


@pytest.mark.parametrize("spec", BATCHED, ids=lambda spec: type(spec).__name__)
@pytest.mark.parametrize(
    "index",
    [
        4,
        -5,
        (0, 3),
        range(10),
        np.array([[2, 10]]),
        torch.tensor([10, 2]),
        [0, -5],
        (1, ..., 2, ...),
        (0, 0, 0, 0),
        1.5,
        [[0], [1, 2]],
    ],
    ids=repr,
)
def test_an_index_that_does_not_fit_is_an_index_error(spec: Any, index: Any) -> None:
    with pytest.raises(IndexError) as caught:
        spec[index]
    assert isinstance(caught.value, SpecIndexError)
    assert caught.value.hint


def test_index_select_checks_the_positions() -> None:
    for spec in BATCHED:
        selected = torch.index_select(spec, 0, torch.tensor([3, 1]))
        assert selected.shape[:2] == (2, 3)
        with pytest.raises(IndexError, match="index 10 is out of range"):
            torch.index_select(spec, 0, torch.tensor([10]))
    with pytest.raises(IndexError, match="cannot be indexed along its last dimension"):
        OneHot(3, (5, 3)).index_select(-1, torch.tensor([0, 1]))


def test_unknown_sizes_are_not_checked() -> None:
    spec = Unbounded((-1, 3))
    assert spec[[7, 8]].shape == (2, 3)
    assert spec[:, 0].shape == (-1,)
    assert MultiCategorical([3, 4], (-1, 2, 2)).is_in(torch.ones(5, 2, 2, dtype=torch.int64))
    assert MultiCategorical([3, 4], (-1, 1, 2)).expand(3, -1, 1, 2).shape == (3, -1, 1, 2)


def test_stacks_are_indexed_likewise() -> None:
    spec = kinds.stack(Unbounded((4, 2)), Unbounded((4, 3)))
    assert spec[range(1)].shape == (1, 4, 2)
    assert spec[:, ::-1].shape == (2, 4, -1)
    assert spec[:, [0, 1]].shape == (2, 2, -1)
    with pytest.raises(IndexError):
        spec[2]
    with pytest.raises(IndexError):
        spec[:, [9]]


def test_parsed_index() -> None:
    parsed = parse_index((..., [], slice(None)), torch.Size([2, 3]), "Unbounded")
    assert isinstance(parsed[1], torch.Tensor)
    assert parsed[1].dtype is torch.int64
    with pytest.raises(SpecIndexError, match="several ellipses"):
        parse_index((..., ...), torch.Size([2]), "Unbounded")


@pytest.mark.parametrize(
    ("index", "names"),
    [
        (0, ["time"]),
        ((slice(None), 0), ["env"]),
        ((..., None), ["env", "time", None]),
        ((None, slice(1)), [None, "env", "time"]),
        ([0, 1], ["env", "time"]),
        ([[0, 1]], [None, None, None]),
        (([0, 1], [1, 0]), [None]),
        (torch.ones(4, 3, dtype=torch.bool), [None]),
    ],
)
def test_names_follow_the_index(index: Any, names: list[str | None]) -> None:
    shape = torch.Size([4, 3])
    assert index_names(["env", "time"], parse_index(index, shape, "Composite")) == names
    spec = Composite(a=Unbounded((4, 3)), shape=shape, names=["env", "time"])
    assert spec[index].names == names

"""Categorical specs: integers, one-hot vectors, several variables, binary."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from tdx.foundation.errors import SpecError
from tdx.specs import Binary, Categorical, CategoricalBox, MultiCategorical, MultiOneHot, OneHot

MASK = torch.tensor([True, False, True])


def test_categorical_membership() -> None:
    spec = Categorical(3)
    assert [spec.is_in(torch.tensor(i)) for i in (-1, 0, 2, 3)] == [False, True, True, False]
    real = Categorical(3, dtype=torch.float32)
    assert real.is_in(torch.tensor(2.0))
    assert not real.is_in(torch.tensor(1.5))
    assert not real.is_in(torch.tensor(torch.nan))
    flags = Categorical(2, (1,), dtype=torch.bool)
    assert flags.is_in(torch.tensor([True]))
    assert spec.why_not_in(torch.tensor(5)) == "a value is outside the categories 0 to 2"
    with pytest.raises(SpecError, match=r"3 categories do not fit torch.bool"):
        Categorical(3, dtype=torch.bool)


def test_masks_restrict_samples_membership_and_projection() -> None:
    for spec in (Categorical(3, mask=MASK), OneHot(3, mask=MASK)):
        drawn = spec.to_categorical(spec.rand((200,)))
        assert set(drawn.tolist()) == {0, 2}
        forbidden = spec.to_categorical_spec().replace(mask=None)
        assert not spec.is_in(spec.encode(1))
        assert forbidden.is_in(torch.tensor(1))
        spec.update_mask([False, True, False])
        assert spec.is_in(spec.encode(1))
        assert spec.to_categorical(spec.rand((5,))).tolist() == [1] * 5
        spec.update_mask(None)
        assert spec.mask is None
        assert len(set(spec.to_categorical(spec.rand((200,))).tolist())) == 3


def test_updating_a_mask_does_not_affect_copies() -> None:
    spec = Categorical(3, mask=MASK)
    copied = spec.clone()
    spec.update_mask(None)
    assert copied.mask is not None
    assert not copied.is_in(torch.tensor(1))


def test_invalid_masks() -> None:
    with pytest.raises(SpecError, match=r"\(2,\) does not broadcast to \(3,\)"):
        Categorical(3, mask=[True, False])
    with pytest.raises(SpecError, match="does not broadcast"):
        OneHot(3).update_mask(torch.ones(2, 2))
    with pytest.raises(SpecError, match="the mask allows no category"):
        Categorical(3, mask=[False] * 3).rand()
    with pytest.raises(SpecError, match="needs the same nvec"):
        MultiCategorical([[1, 2], [3, 4]]).update_mask(torch.ones(10))


def test_masks_follow_shapes() -> None:
    mask = torch.eye(3, dtype=torch.bool)
    for spec in (Categorical(3, (3,), mask=mask), OneHot(3, (3, 3), mask=mask)):
        flipped = spec[[2, 1, 0]]
        assert spec.to_categorical(spec.rand()).tolist() == [0, 1, 2]
        assert flipped.to_categorical(flipped.rand()).tolist() == [2, 1, 0]
        wide = spec.expand(4, *spec.shape).flatten(0, 1)
        assert wide.to_categorical(wide.rand()).tolist() == [0, 1, 2] * 4
        assert spec.to_one_hot_spec().mask is not None
        assert spec.to_categorical_spec().rand().tolist() == [0, 1, 2]
    several = MultiCategorical(
        [2, 2], (2, 2), mask=torch.tensor([[1, 0, 1, 0], [0, 1, 0, 1]], dtype=torch.bool)
    )
    assert several.rand().tolist() == [[0, 0], [1, 1]]
    assert several[1].rand().tolist() == [1, 1]
    assert several[[1, 0]].rand().tolist() == [[1, 1], [0, 0]]
    with pytest.raises(SpecError, match="cannot change the last dimension of a MultiCategorical"):
        several[:, 0]


def test_project_returns_the_nearest_category() -> None:
    spec = Categorical(5)
    assert spec.project(torch.tensor([-4, 2, 9])).tolist() == [0, 2, 4]
    assert spec.project(torch.tensor([-4.0, 2.4, 1e9, torch.nan])).tolist() == [0, 2, 4, 0]
    masked = Categorical(5, mask=[True, False, False, True, False])
    assert masked.project(torch.tensor([0, 1, 2, 3, 4])).tolist() == [0, 0, 3, 3, 3]
    assert Binary(3).project(torch.tensor([-1, 0, 7])).tolist() == [0, 0, 1]
    several = MultiCategorical([2, 3])
    assert several.project(torch.tensor([[5, -1], [-1, 5]])).tolist() == [[1, 0], [0, 2]]


def test_project_one_hot_takes_the_largest_element() -> None:
    spec = OneHot(3)
    assert spec.project(torch.tensor([0.2, 0.5, 0.3])).tolist() == [False, True, False]
    assert spec.project(torch.tensor([1, 1, 0]).bool()).tolist() == [True, False, False]
    assert spec.project(torch.zeros(3, dtype=torch.bool)).tolist() == [True, False, False]
    assert spec.project(torch.tensor([0, 5, 2])).tolist() == [False, True, False]
    masked = OneHot(3, mask=MASK)
    assert masked.project(torch.tensor([0.0, 1.0, 0.5])).tolist() == [False, False, True]
    several = MultiOneHot([2, 3])
    assert several.project(torch.tensor([0.1, 0.2, 0.9, 0.0, 0.5])).tolist() == [
        False,
        True,
        True,
        False,
        False,
    ]


def test_vectors_with_zero_or_two_ones_are_not_in_the_spec() -> None:
    spec = OneHot(3)
    assert not spec.is_in(torch.tensor([True, True, False]))
    assert not spec.is_in(torch.zeros(3, dtype=torch.bool))
    assert not OneHot(3, dtype=torch.int64).is_in(torch.tensor([2, -1, 0]))
    assert not MultiOneHot([2, 3]).is_in(torch.tensor([1, 1, 0, 0, 0]).bool())
    assert spec.is_in(torch.eye(3, dtype=torch.bool))


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (1, [1]),
        (np.array(2), [2]),
        (np.int64(0), [0]),
        (torch.tensor(1), [1]),
        ([1], [1]),
        (np.array([1, 0]), [1, 0]),
        (torch.tensor([1, 2], dtype=torch.uint16), [1, 2]),
    ],
)
def test_one_hot_encodes_category_numbers(value: Any, expected: list[int]) -> None:
    encoded = OneHot(3).encode(value)
    assert encoded.long().argmax(-1).flatten().tolist() == expected


def test_one_hot_encode_keeps_vectors() -> None:
    row = [False, True, False]
    assert OneHot(3).encode(row).tolist() == row
    assert OneHot(3).encode(np.array([0.0, 1.0, 0.0])).tolist() == row
    assert OneHot(3, (2, 3)).encode(torch.eye(3).bool()[:2]).shape == (2, 3)


def test_encode_rejects_unknown_categories() -> None:
    with pytest.raises(SpecError, match="category 3 is not in the range 0 to 2"):
        OneHot(3).encode(3)
    with pytest.raises(SpecError, match="category 2 is not in the range 0 to 1"):
        MultiOneHot([2, 3]).encode([2, 0])
    with pytest.raises(SpecError, match="expected 2 categories"):
        MultiOneHot([2, 3]).encode([1, 0, 1])
    with pytest.raises(SpecError, match="expected a value of shape"):
        MultiCategorical([2, 3]).encode([1, 0, 1])


def test_register_assigns_categories_in_order_of_appearance() -> None:
    spec = OneHot(3, use_register=True)
    assert spec.encode("north").tolist() == [True, False, False]
    assert spec.encode("south").tolist() == [False, True, False]
    assert spec.clone().encode(np.int64(7)).tolist() == [False, False, True]
    assert spec.to_numpy(torch.tensor([False, True, False])) == "south"
    with pytest.raises(SpecError, match="cannot encode 'west': all 3 categories"):
        spec.encode("west")


def test_conversion_between_categorical_and_one_hot() -> None:
    numbers = torch.tensor([[1, 2], [0, 0]])
    spec = MultiCategorical([2, 3], (2, 2))
    rows = spec.to_one_hot(numbers, safe=True)
    assert spec.to_one_hot_spec().is_in(rows)
    assert torch.equal(spec.to_one_hot_spec().to_categorical(rows, safe=True), numbers)
    assert spec.to_one_hot_spec().to_categorical_spec() == spec
    assert spec.to_categorical(numbers, safe=True) is numbers
    assert spec.to_categorical_spec() is spec
    assert Binary(3).to_one_hot_spec() == OneHot(2, (3, 2))
    assert OneHot(3).to_one_hot_spec().to_categorical_spec() == Categorical(3)
    with pytest.raises(AssertionError):
        Categorical(3).to_one_hot(torch.tensor(5), safe=True)
    with pytest.raises(AssertionError):
        OneHot(3).to_categorical(torch.zeros(3, dtype=torch.bool), safe=True)
    with pytest.raises(AssertionError):
        OneHot(3).to_one_hot(torch.zeros(3, dtype=torch.bool), safe=True)
    with pytest.raises(AssertionError):
        spec.to_categorical(numbers + 5, safe=True)


def test_index_works_for_each_encoding() -> None:
    table = torch.arange(6).view(2, 3)
    numbers = torch.tensor([2, 0])
    expected = torch.tensor([2, 3])
    assert torch.equal(Categorical(3, (2,)).index(numbers, table), expected)
    rows = Categorical(3).to_one_hot(numbers)
    assert torch.equal(OneHot(3, (2, 3)).index(rows, table), expected)
    assert torch.equal(OneHot(3).index(rows, torch.arange(3) * 10), torch.tensor([20, 0]))
    assert OneHot(3).index(rows[0], torch.arange(3)).tolist() == [2]
    assert Categorical(3).index(torch.tensor(1), table).tolist() == [1, 4]
    assert MultiCategorical([2, 3]).index(torch.tensor([1, 2]), table).tolist() == [[1, 2], [4, 5]]
    several = MultiOneHot([2, 3])
    row = several.encode([1, 2])
    assert several.index(row, torch.arange(5)).tolist() == [1, 4]
    assert several.index(torch.stack([row, row]), torch.arange(10).view(2, 5)).tolist() == [
        [1, 4],
        [6, 9],
    ]


def test_enumerate_uses_masks() -> None:
    assert Categorical(3, mask=MASK).enumerate(use_mask=True).tolist() == [0, 2]
    assert Categorical(3, mask=MASK).enumerate().tolist() == [0, 1, 2]
    assert OneHot(3, mask=MASK).enumerate(use_mask=True).shape == (2, 3)
    mask = [True, False, False, True, True]
    for spec in (MultiCategorical([2, 3], mask=mask), MultiOneHot([2, 3], mask=mask)):
        rows = spec.enumerate(use_mask=True)
        assert spec.to_categorical(rows).tolist() == [[0, 1], [0, 2]]
        assert spec.is_in(rows)
        assert len(spec.enumerate()) == spec.cardinality() == 6
    for batched in (Categorical(3, (2,), mask=MASK), OneHot(3, (2, 3), mask=MASK)):
        with pytest.raises(SpecError, match="can differ between elements"):
            batched.enumerate(use_mask=True)
    assert MultiOneHot([2, 2], (3, 4)).enumerate().shape == (4, 3, 4)
    assert MultiCategorical([2, 3], (4, 2)).enumerate().shape == (6, 4, 2)
    assert MultiCategorical([[2, 3], [1, 2]]).enumerate().shape == (12, 2, 2)


def test_provisional_number_of_categories() -> None:
    spec = Categorical(-1)
    with pytest.raises(SpecError, match="call set_provisional_n"):
        spec.rand()
    spec.set_provisional_n(4)
    assert spec.n == 4
    assert spec.rand((100,)).max() == 3
    assert spec.expand(3).n == 4
    assert spec.to(torch.int32).n == 4


def test_zero_categories() -> None:
    for spec in (Categorical(0), OneHot(0)):
        with pytest.raises(SpecError, match="cannot sample from 0 categories"):
            spec.rand()
    assert Categorical(0, (0,)).rand().shape == (0,)


def test_indexing_a_multi_categorical() -> None:
    spec = MultiCategorical([2, 3], (4, 2))
    assert spec[0] == MultiCategorical([2, 3])
    assert spec[0, 1] == Categorical(3)
    assert spec[:, 1] == MultiCategorical([3] * 4)
    assert spec[:, 1].is_in(torch.full((4,), 2))
    assert spec.space.boxes == [CategoricalBox(2), CategoricalBox(3)]
    assert len(spec.space) == 2
    assert list(spec.space) == [spec.space[0], spec.space[1]]
    assert MultiCategorical(3).shape == (1,)
    assert MultiCategorical(torch.tensor([2, 3])) == MultiCategorical([2, 3])


def test_shape_must_end_with_n() -> None:
    with pytest.raises(SpecError, match=r"shape \(2, 2\) of a OneHot must end in 3"):
        OneHot(3, (2, 2))
    with pytest.raises(SpecError, match=r"of a MultiCategorical must end in the shape \(2,\)"):
        MultiCategorical([2, 3], (3,))
    with pytest.raises(SpecError, match="must end in 5"):
        MultiOneHot([2, 3], (4,))
    with pytest.raises(SpecError, match="a Binary needs a size"):
        Binary()
    with pytest.raises(SpecError, match="must end in n=3"):
        Binary(3, (2, 4))


def test_one_hot_dimension_cannot_be_changed() -> None:
    spec = OneHot(3, (3, 3))
    changes: tuple[Callable[[], Any], ...] = (
        lambda: spec[:, 0],
        lambda: spec[..., :2],
        lambda: spec[..., [2, 1, 0]],
        lambda: OneHot(3)[0],
        lambda: spec.unsqueeze(-1),
        lambda: spec.flatten(0, 1),
        lambda: spec.expand(3, 3, 4),
    )
    for change in changes:
        with pytest.raises(SpecError):
            change()
    assert OneHot(1, (1, 1)).squeeze() == OneHot(1)
    assert OneHot(3, (1, 2, 3)).squeeze() == OneHot(3, (2, 3))
    assert spec[1:] == OneHot(3, (2, 3))


def test_binary() -> None:
    spec = Binary(3)
    assert spec == Binary(shape=(3,))
    assert spec.n == 2
    assert spec.dtype is torch.int8
    assert not spec.is_in(torch.tensor([0, 1, 2], dtype=torch.int8))
    assert Binary(shape=()).rand().shape == ()
    assert spec[0] == Binary(shape=())
    assert spec.to(torch.bool).encode([1, 0, 1]).tolist() == [True, False, True]
    assert spec.replace(shape=(2, 3)).shape == (2, 3)
    masked = Binary(2)
    masked.update_mask([False, True])
    assert masked.to(torch.int64).rand((9,)).min() == 1


def test_setting_shape_and_dtype() -> None:
    spec = Categorical(3, (2,))
    spec.shape, spec.dtype = (4, 2), torch.int8
    assert spec == Categorical(3, (4, 2), dtype=torch.int8)
    one_hot = OneHot(3)
    one_hot.shape = (5, 3)
    assert one_hot == OneHot(3, (5, 3))
    with pytest.raises(SpecError, match="must end in 3"):
        one_hot.shape = (3, 5)

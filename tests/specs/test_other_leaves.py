"""``NonTensor`` and ``Choice``."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tensordict import NonTensorData, NonTensorStack

from tdx.foundation.errors import SpecError
from tdx.specs import Bounded, Categorical, Choice, Composite, NonTensor, Unbounded


def test_non_tensors_return_their_example() -> None:
    spec = NonTensor((2,), example_data="north")
    for value in (spec.rand(), spec.zero(), spec.one(), spec.sample()):
        assert value.data == "north"
        assert value.batch_size == (2,)
    assert spec.rand((3,)).batch_size == (3, 2)
    assert (spec.dtype, spec.device, spec.domain, spec.space) == (None, None, None, None)


def test_batched_non_tensors_return_one_example_for_each_element() -> None:
    value = NonTensor((2,), example_data="north", batched=True).rand()
    assert isinstance(value, NonTensorStack)
    assert value.tolist() == ["north", "north"]
    scalar = NonTensor((), example_data="north", batched=True)
    assert isinstance(scalar.rand(), NonTensorData)
    assert scalar.rand((2,)).tolist() == ["north", "north"]


def test_non_tensors_accept_any_value_of_their_shape() -> None:
    spec = NonTensor((2,))
    assert spec.is_in("text")
    assert spec.is_in(NonTensorData("text", batch_size=(4, 2)))
    assert not spec.is_in(NonTensorData("text", batch_size=(3,)))
    assert spec.project("text") == "text"
    spec.type_check(torch.zeros(1))
    assert spec.encode(["a", "b"]).data == ["a", "b"]
    assert spec.encode(spec.rand()).batch_size == (2,)
    assert spec.to_numpy(spec.encode("text")) == "text"
    assert spec.to_numpy("text") == "text"


def test_non_tensor_attributes_survive_shape_operations() -> None:
    spec = NonTensor((2,), example_data="north")
    assert spec.to(torch.float64) is spec
    assert spec.to("cpu").device == torch.device("cpu")
    assert spec[0].example_data == "north"
    assert spec.expand(3, 2).shape == (3, 2)
    assert spec != NonTensor((2,), example_data="south")
    with pytest.raises(SpecError, match="cannot be counted"):
        spec.cardinality()
    with pytest.raises(SpecError, match="cannot be enumerated"):
        spec.enumerate()


def test_non_tensor_in_a_composite() -> None:
    spec = Composite(name=NonTensor((), example_data="north"), x=Unbounded(1))
    value = spec.rand()
    assert value["name"] == "north"
    assert spec.is_in(value)
    encoded = spec.encode({"name": "south", "x": [1.0]})
    assert encoded["name"] == "south"
    assert spec.is_in(encoded)
    assert spec.to_numpy(encoded)["name"] == "south"


def test_choice_samples_from_all_specs() -> None:
    spec = Choice([Bounded(0.0, 1.0, (2,)), Bounded(5.0, 6.0, (2,))])
    drawn = torch.stack([spec.rand() for _ in range(50)])
    assert (drawn < 2).any()
    assert (drawn > 4).any()
    assert spec.is_in(drawn[0])
    assert not spec.is_in(torch.full((2,), 3.0))
    assert spec.project(torch.full((2,), 3.0)).tolist() == [1.0, 1.0]
    assert spec.num_choices == len(spec.choices) == 2
    assert spec.zero((3,)).shape == (3, 2)
    assert spec.one().tolist() == [1.0, 1.0]


def test_choice_cardinality() -> None:
    spec = Choice([Categorical(2), Categorical(3)])
    assert spec.cardinality() == 5
    assert [int(value) for value in spec.enumerate()] == [0, 1, 0, 1, 2]
    assert spec.encode(2).item() == 2
    assert spec.to_numpy(torch.tensor(2), safe=True) == 2
    with pytest.raises(AssertionError, match="in none of the 2 choices"):
        spec.to_numpy(torch.tensor(7), safe=True)


def test_choice_of_non_tensor_values() -> None:
    texts = [NonTensorData("north", batch_size=()), NonTensorData("south", batch_size=())]
    spec = Choice(texts)
    assert spec.rand().data in ("north", "south")
    assert spec.rand((2,)).batch_size == (2,)
    assert spec.is_in("north")
    assert spec.is_in(texts[1])
    assert not spec.is_in("west")
    assert spec.cardinality() == 2
    assert spec.enumerate() == texts
    assert spec.project("west").data == "north"
    assert spec.to_numpy(texts[1]) == "south"
    assert spec.encode("south").data == "south"


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        ([], "at least one"),
        ([Categorical(2), Categorical(2, (1,))], "same shape"),
        ([Categorical(2), Unbounded(())], "same dtype"),
        ([Bounded(0, 1, (1,)), Unbounded(1)], "same type"),
    ],
)
def test_incompatible_choices_are_rejected(choices: list[Any], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        Choice(choices)


def test_choice_shape_and_device_operations() -> None:
    spec = Choice([Unbounded((2, 3)), Bounded(0, 1, (2, 3)).replace(low=None, high=None)])
    assert spec.to(torch.float64).dtype is torch.float64
    assert spec.flatten().shape == (6,)
    assert spec.reshape(3, 2).shape == (3, 2)
    assert spec.unflatten(0, (1, 2)).shape == (1, 2, 3)
    assert spec.unsqueeze(0).squeeze().shape == (2, 3)
    assert spec[0].shape == (3,)


def test_elements_of_the_feature_dimensions_share_one_value() -> None:
    spec = NonTensor((3, 4), example_data="north", feature_dims=1)
    assert spec.feature_dims == 1
    value = spec.rand((2,))
    assert value.batch_size == (2, 3, 4)
    assert isinstance(value[0], NonTensorStack)
    assert isinstance(value[0, 0], NonTensorData)
    assert spec.clone() == spec.expand(5, 3, 4)[0] == spec
    assert spec != NonTensor((3, 4), example_data="north")
    assert NonTensor((3, 4)).feature_dims == 2
    assert NonTensor((3, 4), batched=True).feature_dims == 0
    with pytest.raises(SpecError, match="exclude each other"):
        NonTensor((3,), batched=True, feature_dims=1)


def test_choices_must_be_specs_or_non_tensor_values() -> None:
    with pytest.raises(SpecError, match="must be a spec or a non-tensor value, got 'north'"):
        Choice(["north"])
    one = Choice([NonTensorStack("a", "b"), NonTensorStack("c", "d")])
    assert one.clone() == one
    assert one != Choice([NonTensorStack("a", "b"), NonTensorStack("c", "e")])
    assert one != Choice([NonTensorStack("a", "b")])

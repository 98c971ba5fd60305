"""Specs of tdx and TorchRL: conversion there and back, and the same values."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torchrl.data as rl
from hypothesis import given, settings
from hypothesis import strategies as st

from tdx import Binary, Bounded, Categorical, Composite, NonTensor, SpecError, Unbounded
from tdx.stacks.torchrl import from_torchrl_spec, to_torchrl_spec
from tests.programs import examples
from tests.specs import kinds

pytestmark = pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")

WIDE_UNSIGNED = {torch.uint16, torch.uint32, torch.uint64}
CONVERTIBLE = {name: spec for name, spec in kinds.ALL.items() if name != "unbounded complex"}
# TorchRL draws NaN for infinite bounds, and stacks no draws along dimension 1.
NOT_DRAWN = {"bounded below", "bounded above", "stack along 1"}
MASK = torch.tensor([True, False, True])


def is_drawn_by_torchrl(spec: Any) -> bool:
    """TorchRL draws NaN for infinite bounds and fails for these dtypes and for empty ranges."""
    if spec.dtype in WIDE_UNSIGNED or 0 in spec.shape:
        return False
    if not isinstance(spec, Bounded):
        return True
    width = spec.high.double() - spec.low.double()
    narrow = torch.finfo(torch.float16).max
    return bool(width.isfinite().all()) and bool((width < narrow).all())


def same(one: Any, other: Any) -> bool:
    """TorchRL compares specs with masks by a tensor."""
    return bool(torch.as_tensor(one == other).all())


@pytest.mark.parametrize("spec", CONVERTIBLE.values(), ids=CONVERTIBLE)
def test_round_trip(spec: Any) -> None:
    spec = spec.clone()
    converted = to_torchrl_spec(spec)
    back = from_torchrl_spec(converted)
    assert back == spec
    assert type(back) is type(spec)
    assert (back.shape, back.device) == (spec.shape, spec.device)
    assert same(to_torchrl_spec(back), converted)


@pytest.mark.parametrize("name", [name for name in CONVERTIBLE if name not in NOT_DRAWN])
def test_either_accepts_what_the_other_draws(name: str) -> None:
    spec = CONVERTIBLE[name].clone()
    converted = to_torchrl_spec(spec)
    for _ in range(3):
        assert bool(converted.is_in(spec.rand()))
        assert spec.is_in(converted.rand())


@given(spec=kinds.leaves)
@settings(max_examples=examples(150))
def test_round_trip_of_random_specs(spec: Any) -> None:
    converted = to_torchrl_spec(spec)
    assert from_torchrl_spec(converted) == spec
    if is_drawn_by_torchrl(spec):
        assert bool(converted.is_in(spec.rand()))
        assert spec.is_in(converted.rand())


@given(entries=st.lists(kinds.leaves, max_size=3), lead=st.integers(1, 3), locked=st.booleans())
@settings(max_examples=examples(40))
def test_round_trip_of_random_composites(entries: list[Any], lead: int, locked: bool) -> None:
    wide = [spec.expand(lead, *spec.shape) for spec in entries]
    inner = Composite({f"k{i}": spec for i, spec in enumerate(wide)}, shape=(lead,))
    spec = Composite({"inner": inner, "empty": None}, shape=(lead,), names=["batch"])
    spec["inner", "deep"] = Composite(shape=(lead,), step_mdp_static=True)
    if locked:
        spec.lock_()
    back: Any = from_torchrl_spec(to_torchrl_spec(spec))
    assert back == spec
    assert back.is_locked == locked
    assert back.names == spec.names
    assert back["inner", "deep"].step_mdp_static


FOREIGN: dict[str, Any] = {
    "bounded": lambda: rl.Bounded(-1.0, 2.0, (2, 3)),
    "unbounded": lambda: rl.Unbounded((3,), dtype=torch.int16),
    "categorical": lambda: rl.Categorical(3, (2,), mask=MASK.expand(2, 3)),
    "one-hot": lambda: rl.OneHot(3, (2, 3), mask=MASK),
    "multi-categorical": lambda: rl.MultiCategorical([2, 3], (4, 2)),
    "multi-one-hot": lambda: rl.MultiOneHot([2, 3], (4, 5)),
    "binary": lambda: rl.Binary(4, dtype=torch.bool),
    "text": lambda: rl.NonTensor((2,), example_data="north", batched=True),
    "choice": lambda: rl.Choice([rl.Categorical(2), rl.Categorical(5)]),
    "stack": lambda: torch.stack([rl.Bounded(0, 1, (2,)), rl.Bounded(0, 2, (2,))]),
    "composite": lambda: rl.Composite(
        a=rl.Unbounded((2, 3)), n=rl.Composite(b=rl.Binary(shape=(2, 1)), shape=(2,)), shape=(2,)
    ),
    "stack of composites": lambda: torch.stack(
        [rl.Composite(a=rl.Unbounded(3)), rl.Composite(a=rl.Unbounded(4), b=rl.Unbounded(1))]
    ),
}


@pytest.mark.parametrize("make", FOREIGN.values(), ids=FOREIGN)
def test_specs_of_torchrl_come_back_equal(make: Any) -> None:
    spec = make()
    converted = from_torchrl_spec(spec)
    assert same(to_torchrl_spec(converted), spec)
    assert converted.is_in(spec.rand())
    assert bool(spec.is_in(converted.rand()))


def test_details_survive() -> None:
    def there_and_back(spec: Any) -> Any:
        return from_torchrl_spec(to_torchrl_spec(spec))

    unknown = Categorical(-1)
    unknown.set_provisional_n(4)
    assert there_and_back(unknown).n == 4
    masked = Binary(2)
    masked.update_mask([True, False])
    assert there_and_back(masked).mask.tolist() == [[True, False], [True, False]]
    assert there_and_back(NonTensor((3,), example_data=[1])).example_data == [1]
    assert to_torchrl_spec(Unbounded((3, -1))).shape == (3, -1)


def test_specs_without_counterpart_are_refused() -> None:
    with pytest.raises(SpecError, match="complex64") as caught:
        to_torchrl_spec(Composite(a=Composite(b=Unbounded(2, dtype=torch.complex64))))
    assert caught.value.where.key == ("a", "b")
    with pytest.raises(SpecError, match="int is not a spec of TorchRL"):
        from_torchrl_spec(3)
    with pytest.raises(SpecError, match="Binary is not a spec of tdx"):
        to_torchrl_spec(rl.Binary(2))

"""Stacks of different specs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from tensordict import LazyStackedTensorDict

from tdx.foundation.errors import KeyNotFoundError, SpecError
from tdx.specs import (
    Bounded,
    Categorical,
    Composite,
    NonTensor,
    OneHot,
    Stacked,
    StackedComposite,
    Unbounded,
    check_no_exclusive_keys,
    consolidate_spec,
)
from tdx.specs.spec import stack as stack_specs
from tests.specs.kinds import stack

# torch warns once that nested tensors are new.
pytestmark = pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")


def unlike() -> Any:
    return stack(
        Composite(a=Unbounded((3, 2)), n=Composite(c=Categorical(3, (3,)), shape=(3,)), shape=(3,)),
        Composite(
            a=Unbounded((3, 4)),
            b=Unbounded((3,)),
            n=Composite(c=Categorical(5, (3,)), shape=(3,)),
            shape=(3,),
        ),
    )


@pytest.mark.parametrize("dim", [0, 1, 2, -1])
def test_leaves_of_equal_shape_have_dense_values(dim: int) -> None:
    spec = stack(Bounded(0.0, 1.0, (2, 3)), Bounded(5.0, 6.0, (2, 3)), dim=dim)
    assert isinstance(spec, Stacked)
    value = spec.rand((7,))
    assert value.shape == (7, *spec.shape)
    assert spec.is_in(value)
    where = dim % 3
    assert value.select(where + 1, 0).max() <= 1
    assert value.select(where + 1, 1).min() >= 5
    assert spec.project(torch.full(spec.shape, 3.0)).unique().tolist() == [1, 5]
    assert spec.why_not_in(torch.zeros(spec.shape)) == (
        "part 1: a value is outside the bounds, which range from 5 to 6"
    )
    assert spec.zero().shape == spec.shape


def test_leaves_of_different_shapes_have_nested_values() -> None:
    spec = stack(OneHot(3), OneHot(4))
    assert spec.shape == (2, -1)
    value = spec.rand()
    assert value.is_nested
    assert spec.is_in(value)
    assert [part.shape for part in value.unbind()] == [(3,), (4,)]
    assert [len(part.shape) for part in spec.project(value).unbind()] == [1, 1]
    with pytest.raises(SpecError, match="along dimension 0"):
        stack(Unbounded(3), Unbounded(4), dim=1).rand()


def test_values_outside_a_stack() -> None:
    spec = stack(Categorical(2), Categorical(5))
    assert spec.why_not_in("text") == "expected a tensor, got a str"
    assert spec.why_not_in(torch.tensor([1, 1, 1])) == "expected 2 parts along dimension 0, got 3"
    assert not spec.is_in(torch.tensor(1))
    with pytest.raises(SpecError, match="expected 2 parts"):
        spec.project(torch.tensor(1))
    with pytest.raises(AssertionError, match="part 0"):
        spec.assert_is_in(torch.tensor([4, 4]))
    with pytest.raises(SpecError, match=r"expected dtype torch\.int64"):
        spec.type_check(torch.zeros(2))


def test_members_shapes_and_devices() -> None:
    first, second = Categorical(2, (3,)), Categorical(5, (3,))
    spec = stack(first, second, dim=1)
    assert spec.specs == [first, second]
    assert spec.stack_dim == 1
    assert spec.shape == (3, 2)
    assert spec.unbind(1) == (first, second)
    assert len(spec.unbind(0)) == 3
    assert (spec.dtype, spec.domain, spec.device) == (torch.int64, "discrete", torch.device("cpu"))
    assert spec.to("meta").device == torch.device("meta")
    assert spec.to(torch.int8).dtype is torch.int8
    assert stack(first, second.to("meta")).device is None


def test_indexing() -> None:
    first, second, third = (Categorical(n, (3,)) for n in (2, 3, 4))
    spec = stack(first, second, third)
    assert spec[1] == second
    assert spec[-1, 0] == third[0]
    assert spec[1:] == stack(second, third)
    assert spec[[0, 2]] == stack(first, third)
    assert spec[torch.tensor([True, False, True])] == stack(first, third)
    assert spec[..., 1] == stack(first[1], second[1], third[1])
    assert spec[:, 1:].shape == (3, 2)
    assert spec[None].shape == (1, 3, 3)
    assert spec[None][0] == spec
    inner = stack(first, second, third, dim=1)
    assert inner[0].shape == (3,)
    assert inner[:, 1] == second
    assert inner[0, 1] == second[0]
    assert inner[None, 1:].shape == (1, 2, 3)
    with pytest.raises(SpecError, match="index 7 is out of range for a stack of 3 specs"):
        spec[7]
    with pytest.raises(SpecError, match="has 2 dimensions"):
        spec[torch.zeros(2, 2, dtype=torch.long)]


def test_shapes() -> None:
    spec = stack(Unbounded((3, 1)), Bounded(0, 1, (3, 1)), dim=1)
    assert spec.shape == (3, 2, 1)
    assert spec.unsqueeze(0).shape == (1, 3, 2, 1)
    assert spec.unsqueeze(-1).shape == (3, 2, 1, 1)
    assert spec.unsqueeze(2).squeeze(2) == spec
    assert spec.squeeze().shape == (3, 2)
    assert spec.squeeze(0) is spec
    assert spec.expand(4, 3, 2, 5).shape == (4, 3, 2, 5)
    alone: Any = Stacked(Unbounded(3), dim=0)
    assert alone.squeeze(0) == Unbounded(3)
    assert stack(Unbounded((2, 3)), Unbounded((2, 4))).make_neg_dim(1).shape == (2, -1, -1)
    wide = stack(Unbounded(3), Unbounded(4)).expand(5, 2, -1)
    assert wide.shape == (5, 2, -1)
    for method, arguments in {
        "expand": (3, 3, 1),
        "reshape": (6,),
        "flatten": (),
        "unflatten": (0, (3, 1)),
        "make_neg_dim": (1,),
    }.items():
        with pytest.raises(SpecError):
            getattr(spec, method)(*arguments)


def test_incompatible_specs_cannot_be_stacked() -> None:
    with pytest.raises(SpecError, match="cannot stack an empty list"):
        stack_specs([])
    with pytest.raises(SpecError, match="key 'action': specs to stack must have the same dtype"):
        _ = stack(
            Composite(action=Bounded(-1.0, 1.0, (1,))),
            Composite(action=Bounded(-1.0, 1.0, (1,), dtype=torch.float64)),
        )["action"]
    with pytest.raises(SpecError, match="same dtype, got float32, float64"):
        stack(Unbounded(3), Unbounded(3, dtype=torch.float64))
    with pytest.raises(SpecError, match="same number of dimensions"):
        stack(Unbounded(3), Unbounded((3, 1)))
    with pytest.raises(SpecError, match="cannot be stacked with leaf specs"):
        stack(Composite(), Unbounded(()))
    with pytest.raises(SpecError, match="stack dimension 4 is out of range"):
        stack(Unbounded(3), Unbounded(2), dim=4)
    with pytest.raises(SpecError, match="at least one"):
        Stacked()
    with pytest.raises(SpecError, match="into out"):
        torch.stack([Unbounded(3), Unbounded(3)], out=torch.zeros(2))  # type: ignore[list-item]


def test_encode_cardinality_and_to_numpy() -> None:
    spec = stack(Categorical(2), Categorical(3))
    assert spec.encode([1, 2]).tolist() == [1, 2]
    assert spec.encode(torch.tensor([1, 2]).numpy()).tolist() == [1, 2]
    assert [int(part) for part in spec.to_numpy(torch.tensor([1, 2]), safe=True)] == [1, 2]
    assert spec.cardinality() == 6
    rows = spec.enumerate()
    assert rows.shape == (6, 2)
    assert spec.is_in(rows)


def test_non_tensors_stack() -> None:
    spec = stack(NonTensor((), example_data="north"), NonTensor((), example_data="south"))
    assert spec.rand().tolist() == ["north", "south"]


def test_composites_that_differ() -> None:
    spec = unlike()
    assert isinstance(spec, StackedComposite)
    assert isinstance(spec, Composite)
    assert list(spec.keys()) == ["a", "n"]
    assert set(spec.keys(True, True)) == {"a", ("n", "c")}
    assert spec["a"].shape == (2, 3, -1)
    assert spec["n", "c"].specs == [Categorical(3, (3,)), Categorical(5, (3,))]
    assert "b" not in spec
    assert "b" in spec[1]
    assert len(spec) == 2
    assert spec.batch_size == spec.shape == (2, 3)
    value = spec.rand((4,))
    assert isinstance(value, LazyStackedTensorDict)
    assert value.batch_size == (4, 2, 3)
    assert spec.is_in(value)
    assert not spec.is_in(value[:, [1, 0]])
    assert spec.is_in(spec.project(value))
    assert spec.is_in(spec.encode(spec.rand()))


def test_writing_to_stacked_composites() -> None:
    spec = unlike()
    spec["x"] = Unbounded((2, 3, 7))
    assert spec[0]["x"] == Unbounded((3, 7))
    spec["d"] = {"e": Unbounded((2, 3))}
    assert spec[1]["d", "e"].shape == (3,)
    with pytest.raises(SpecError, match="expected 2 specs along dimension 0"):
        spec["z"] = Unbounded((3, 3))
    spec["n", "y"] = stack(Unbounded((3, 1)), Unbounded((3, 2)))
    assert spec[1]["n", "y"].shape == (3, 2)
    del spec["x"]
    assert "x" not in spec[0]
    assert spec.pop(("n", "y")).shape == (2, 3, -1)
    with pytest.raises(SpecError):
        spec.shape = (2,)
    spec.device = "cpu"
    assert spec[0].device == torch.device("cpu")
    spec.clear_device_()
    assert spec.device is None
    assert spec.empty().is_empty()


def test_shapes_of_stacked_composites() -> None:
    spec = unlike()
    assert spec.expand(5, 2, 3).shape == (5, 2, 3)
    assert spec.expand(5, 2, 3)["a"].shape == (5, 2, 3, -1)
    assert spec[:, 1].shape == (2,)
    assert spec[:, 1]["n"].shape == (2,)
    assert spec[0].shape == (3,)
    assert spec.unsqueeze(1)["a"].shape == (2, 1, 3, -1)
    assert spec.unbind(0)[1] == spec[1]
    assert spec.clone() == spec
    assert spec.clone().to("cpu").device == torch.device("cpu")
    inner = stack(*unlike().specs, dim=1)
    assert inner.shape == (3, 2)
    assert inner["a"].shape == (3, 2, -1)
    assert inner.rand().batch_size == (3, 2)
    assert inner.is_in(inner.rand((4,)))


def test_stacks_inside_composites() -> None:
    spec = Composite(agents=unlike(), x=Unbounded(1))
    value = spec.rand()
    assert spec.is_in(value)
    assert spec.clone() == spec
    assert spec["agents", "n", "c"].shape == (2, 3)


def agents() -> Any:
    """Agents with different keys and sizes."""
    common = Bounded(0.0, 1.0, (2, 3))
    return stack(
        Composite(
            seen=common,
            own=Unbounded((2, 3)),
            a=Composite(x=Unbounded((2, 1)), shape=(2,)),
            shape=(2,),
        ),
        Composite(seen=common, own=Unbounded((2, 4)), b=Unbounded((2, 5)), shape=(2,)),
        Composite(seen=common, own=Unbounded((2, 4)), shape=(2,)),
    )


def test_the_stack_dimension_of_a_stack() -> None:
    spec = agents()
    assert spec.dim == spec.stack_dim == 0
    assert spec.expand(4, 3, 2).dim == 1
    assert len(spec) == len(spec.rand()) == 3
    assert Composite(agents=spec)["agents"]


def test_keys_that_not_all_composites_have_can_be_deleted() -> None:
    spec = agents()
    del spec["b"]
    assert "b" not in spec[1]
    del spec["a", "x"]
    assert spec[0]["a"].is_empty()
    del spec["seen"]
    assert all("seen" not in member for member in spec.specs)
    with pytest.raises(KeyNotFoundError):
        del spec["seen"]
    assert spec != agents()


def test_values_of_stacked_composites_are_checked_by_row() -> None:
    spec = agents()
    value = spec.rand()
    spec.type_check(value)
    spec.type_check(value["seen"], "seen")
    with pytest.raises(SpecError, match="expected dtype"):
        spec.type_check(value["seen"].double(), "seen")
    value[1]["b"] = value[1]["b"].double()
    with pytest.raises(SpecError, match=r"key 'b': expected dtype"):
        spec.type_check(value)
    value = spec.rand()
    value[0]["seen"] += 2
    assert not spec.is_in(value)
    assert spec.is_in(spec.project(value))


def test_arrays_of_stacked_composites() -> None:
    value = agents().rand((4,))
    arrays = agents().to_numpy(value, safe=True)
    assert sorted(arrays) == ["own", "seen"]
    np.testing.assert_array_equal(arrays["seen"], value["seen"].numpy())
    assert [array.shape for array in arrays["own"]] == [(4, 2, 3), (4, 2, 4), (4, 2, 4)]


def test_names_of_stacked_composites() -> None:
    assert agents().names == [None, None]


@pytest.mark.parametrize("dim", [0, 1])
def test_consolidated_stacks_have_the_same_keys(dim: int) -> None:
    spec = stack(*agents().specs, dim=dim)
    assert not check_no_exclusive_keys(spec)
    consolidated = consolidate_spec(spec)
    assert check_no_exclusive_keys(consolidated)
    assert set(consolidated.keys(True)) == {"seen", "own", "a", ("a", "x"), "b"}
    assert consolidated["b"].shape[-1] == -1
    assert consolidated.specs[0]["b"].shape == (2, 0)
    assert consolidated.specs[2]["a", "x"].shape == (2, 0)
    assert consolidated.is_in(consolidated.rand())
    assert spec == stack(*agents().specs, dim=dim)
    shallow = consolidate_spec(spec, recurse_through_entries=False)
    assert check_no_exclusive_keys(shallow, recurse=False)
    assert not check_no_exclusive_keys(shallow)


def test_consolidation_keeps_what_has_the_same_keys() -> None:
    inner = stack(Unbounded((2, 3)), Unbounded((2, 4)))
    spec = stack(Composite(n=inner), Composite(), Composite(n=inner))
    consolidated = consolidate_spec(spec)
    assert consolidated["n"].shape == (3, 2, 2, -1)
    plain = Composite(a=Unbounded(3), b=Composite(c=None))
    assert consolidate_spec(plain) == plain
    assert consolidate_spec(plain) is not plain
    assert consolidate_spec(Unbounded(3)) == Unbounded(3)
    assert check_no_exclusive_keys(Unbounded(3))

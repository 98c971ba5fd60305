"""Properties of all specs: samples and projections are in the spec, copies are equal."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from tdx.foundation.errors import CheckError, SpecError
from tdx.specs import Composite, TensorSpec, Unbounded
from tests.specs import kinds

everything = pytest.mark.parametrize("spec", kinds.copies(kinds.ALL), ids=kinds.ALL)
TENSORS = {**kinds.LEAVES, **kinds.STACKS}
tensors = pytest.mark.parametrize("spec", kinds.copies(TENSORS), ids=list(TENSORS))


def assert_equal_values(one: Any, other: Any) -> None:
    if isinstance(one, Tensor):
        assert one.dtype == other.dtype
        assert torch.equal(one, other)
    else:
        assert bool((one == other).all())


@everything
@pytest.mark.parametrize("shape", [(), (4,), (2, 3)])
def test_samples_are_in_the_spec(spec: TensorSpec, shape: tuple[int, ...]) -> None:
    value = spec.rand(shape)
    assert value.shape == (*shape, *spec.shape)
    assert spec.is_in(value)
    assert spec.contains(value)
    spec.assert_is_in(value)
    assert spec.why_not_in(value) is None


@given(kinds.leaves, kinds.shapes)
def test_samples_of_random_leaves_are_in_the_spec(spec: TensorSpec, shape: tuple[int, ...]) -> None:
    value = spec.rand(shape)
    assert value.shape == (*shape, *spec.shape)
    assert value.dtype == spec.dtype
    assert spec.is_in(value)


@given(kinds.leaves, st.integers(0, 1000))
def test_values_at_uniform_numbers_are_in_the_spec(spec: TensorSpec, seed: int) -> None:
    numbers = torch.rand(
        spec.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)
    )
    for unit in (numbers, torch.zeros_like(numbers), torch.full_like(numbers, 1 - 2**-53)):
        value = spec.rand_at(unit.clone())
        if value is not None:
            assert value.shape == spec.shape
            assert value.dtype == spec.dtype
            assert spec.is_in(value)


@everything
def test_project_keeps_values_in_the_spec(spec: TensorSpec) -> None:
    value = spec.rand((2,))
    assert_equal_values(spec.project(value), value)


@given(kinds.leaves, st.data())
def test_projected_values_are_in_the_spec(spec: TensorSpec, data: st.DataObject) -> None:
    torch.manual_seed(data.draw(st.integers(0, 1000)))
    dtype = data.draw(st.sampled_from([torch.float32, torch.float64, torch.int64, torch.bool]))
    noise = torch.randn(2, *spec.shape) * 10.0 ** data.draw(st.integers(-3, 30))
    if dtype.is_floating_point:
        noise = torch.where(torch.rand_like(noise) < 0.2, torch.nan, noise)
        noise = torch.where(torch.rand_like(noise) < 0.2, torch.inf, noise)
        value = noise.to(dtype)
    else:
        value = noise.clamp(-(2.0**40), 2.0**40).to(dtype)
    projected = spec.project(value)
    assert spec.is_in(projected)
    assert spec.project(projected) is projected


@given(kinds.leaves)
def test_project_is_deterministic(spec: TensorSpec) -> None:
    value = torch.full((2, *spec.shape), -1e6)
    state = torch.get_rng_state()
    first = spec.project(value)
    assert torch.equal(torch.get_rng_state(), state)
    assert_equal_values(first, spec.project(value))


@everything
@pytest.mark.parametrize("method", ["zero", "zeros", "one", "ones"])
def test_zeros_and_ones_have_the_shape(spec: TensorSpec, method: str) -> None:
    for lead in ((), (3,)):
        value = getattr(spec, method)(lead)
        assert value.shape == (*lead, *spec.shape)


@everything
def test_copies_are_equal_and_of_the_same_type(spec: TensorSpec) -> None:
    for copied in (
        spec.clone(),
        copy.copy(spec),
        copy.deepcopy(spec),
        pickle.loads(pickle.dumps(spec)),
        spec.to("cpu").clone() if spec.device is not None else spec.clone(),
    ):
        assert type(copied) is type(spec)
        assert copied == spec
        assert spec == copied
        assert repr(copied) == repr(spec)


@given(kinds.leaves)
def test_unpickled_specs_sample_the_same_values(spec: TensorSpec) -> None:
    spec.rand()
    copied = pickle.loads(pickle.dumps(spec))
    assert copied == spec
    torch.manual_seed(1)
    value = spec.rand((2,))
    torch.manual_seed(1)
    assert_equal_values(copied.rand((2,)), value)


def test_specs_of_different_classes_differ() -> None:
    specs = kinds.copies(kinds.ALL)
    for i, one in enumerate(specs):
        for j, other in enumerate(specs):
            assert (one == other) is (i == j)
        assert one != "a spec"


@everything
def test_specs_are_not_hashable(spec: TensorSpec) -> None:
    with pytest.raises(TypeError, match="unhashable"):
        hash(spec)


@everything
def test_squeeze_and_indexing_undo_unsqueeze(spec: Any) -> None:
    for dim in {0, max(spec.ndim - 1, 0)}:
        wide = spec.unsqueeze(dim)
        assert wide.shape == (*spec.shape[:dim], 1, *spec.shape[dim:])
        assert wide.squeeze(dim) == spec
    assert spec.unsqueeze(0)[0] == spec
    assert spec[None][0] == spec
    assert torch.squeeze(torch.unsqueeze(spec, 0), 0) == spec


@everything
def test_indexing_undoes_expand(spec: TensorSpec) -> None:
    wide = spec.expand(5, *spec.shape)
    assert wide == spec.expand((5, *spec.shape))
    assert wide.shape == (5, *spec.shape)
    assert wide[3] == spec
    assert wide[-1] == spec
    assert wide[1:3].shape == (2, *spec.shape)
    assert wide[[0, 2, 4]].shape == (3, *spec.shape)
    assert wide[torch.tensor([True, False, True, True, False])].shape == (3, *spec.shape)
    assert wide[...].shape == wide.shape
    assert wide.is_in(wide.rand((2,)))


@everything
def test_indexed_values_are_in_the_indexed_spec(spec: TensorSpec) -> None:
    wide = spec.expand(4, *spec.shape)
    value = wide.rand()
    for index in (0, -1, slice(1, 3), [0, 3], torch.tensor([2, 1]), None, ..., (slice(None), None)):
        assert wide[index].is_in(value[index])


@tensors
def test_indexed_values_of_random_leaves_are_in_the_indexed_spec(spec: TensorSpec) -> None:
    value = spec.rand()
    indices: list[Any] = [(..., 0), (..., slice(0, 1)), (slice(None), 0), 0]
    for index in indices:
        try:
            indexed = spec[index]
        except SpecError:
            continue
        assert indexed.is_in(value[index])


@everything
def test_unbind_and_iteration(spec: TensorSpec) -> None:
    wide = spec.expand(3, *spec.shape)
    assert list(wide.unbind(0)) == [spec] * 3
    if not isinstance(spec, Composite):
        assert len(wide) == 3
        assert list(wide) == [spec] * 3


@everything
def test_equal_specs_stack_to_the_same_class(spec: TensorSpec) -> None:
    stacked = kinds.stack(spec, spec.clone(), spec.clone())
    assert stacked == spec.expand(3, *spec.shape)
    assert stacked.is_in(stacked.rand())


@pytest.mark.parametrize(
    "spec", [kinds.ALL[name].clone() for name in ("bounded", "one-hot batch", "batched")]
)
def test_reshaping(spec: Any) -> None:
    wide = spec.expand(6, *spec.shape)
    split = wide.unflatten(0, (2, 3))
    assert split.shape == (2, 3, *spec.shape)
    assert split.flatten(0, 1) == wide
    assert wide.reshape(2, 3, *spec.shape) == split
    assert wide.view(3, 2, *spec.shape).shape == (3, 2, *spec.shape)
    assert split[1, 2] == spec
    assert split.is_in(split.rand())


@everything
def test_invalid_shapes_are_rejected(spec: TensorSpec) -> None:
    with pytest.raises(SpecError):
        spec.expand(3, *spec.shape).expand(4, *spec.shape)
    with pytest.raises(SpecError):
        spec.expand(4, *spec.shape)[9]


@tensors
def test_values_outside_the_spec(spec: TensorSpec) -> None:
    value = spec.rand()
    other = torch.complex128
    assert not spec.is_in(value.to(other))
    if spec.ndim:
        assert not spec.is_in(value.flatten()[:0].reshape(0, *value.shape[1:])) or 0 in value.shape
        assert not spec.is_in(torch.zeros(*(n + 1 for n in spec.shape), dtype=spec.dtype))
    assert not spec.is_in("text")
    assert not spec.is_in(None)
    assert not spec.is_in(torch.empty(value.shape, dtype=spec.dtype, device="meta"))
    with pytest.raises(CheckError):
        spec.assert_is_in(value.to(other))
    with pytest.raises(SpecError, match="dtype"):
        spec.type_check(value.to(other), ("agents", "x"))


def test_error_types() -> None:
    with pytest.raises(AssertionError, match="not in its UnboundedContinuous spec"):
        Unbounded(3).assert_is_in(torch.zeros(2))
    with pytest.raises(ValueError, match="ending in"):
        Unbounded(3).project(torch.zeros(2))


@pytest.mark.parametrize(
    "spec",
    # Integers are category numbers to a one-hot spec, also where it is one of integers itself.
    [spec.clone() for name, spec in kinds.ALL.items() if name != "one-hot int"],
)
def test_encode_keeps_values_of_the_spec(spec: Any) -> None:
    value = spec.rand()
    assert_equal_values(spec.encode(value), value)


@tensors
def test_numpy_round_trip(spec: Any) -> None:
    value = spec.rand()
    assert_equal_values(spec.encode(spec.to_numpy(value)), value)
    assert_equal_values(spec.encode(spec.to_numpy(value, safe=True)), value)


@given(kinds.bounded() | st.builds(Unbounded, kinds.shapes, dtype=st.sampled_from(kinds.REALS)))
def test_numpy_round_trip_of_random_leaves(spec: Any) -> None:
    value = spec.rand()
    assert torch.equal(spec.encode(spec.to_numpy(value)), value)


@tensors
def test_memoization_methods_exist(spec: TensorSpec) -> None:
    spec.memoize_encode()
    spec.erase_memoize_cache()
    value = spec.rand()
    assert spec.sample().shape == value.shape
    assert spec.contains(value)
    assert spec.ndimension() == spec.ndim == len(spec.shape)
    assert spec.cpu() == spec
    assert spec.clear_device_() is spec


@tensors
def test_unsupported_torch_functions_are_rejected(spec: Any) -> None:
    with pytest.raises(TypeError):
        torch.add(spec, spec)

"""``Bounded`` and ``Unbounded``: bounds, dtypes, samples and conversion into each other."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch

from tdx.foundation.errors import ArgumentError, SpecError
from tdx.specs import (
    Binary,
    Bounded,
    BoundedContinuous,
    BoundedDiscrete,
    Categorical,
    ContinuousBox,
    TensorSpec,
    Unbounded,
    UnboundedContinuous,
    UnboundedDiscrete,
)
from tdx.specs.bounded import clamp_spec
from tests.specs.kinds import FLOATS, INTEGERS, REALS

INF = math.inf


def test_the_dtype_picks_the_class() -> None:
    assert type(Bounded(0, 1, (1,))) is BoundedContinuous
    assert type(Bounded(0, 1, (1,), dtype=torch.uint8)) is BoundedDiscrete
    assert type(Bounded(0, 1, (1,), dtype=torch.bool)) is BoundedDiscrete
    assert type(Bounded(0, 1, (1,), domain="discrete")) is BoundedDiscrete
    assert type(Unbounded()) is UnboundedContinuous
    assert type(Unbounded(dtype=torch.complex64)) is UnboundedContinuous
    assert type(Unbounded(dtype=torch.int64)) is UnboundedDiscrete
    assert UnboundedDiscrete().dtype is torch.int64
    assert isinstance(Bounded(0, 1, (1,), dtype="uint8"), Bounded)
    assert Bounded(0, 1, (1,), dtype="float64").dtype is torch.float64


@pytest.mark.parametrize("make", [Bounded, Unbounded])
def test_unknown_arguments(make: Any) -> None:
    with pytest.raises(ArgumentError, match="unknown torch dtype 'flout'"):
        make(shape=(1,), dtype="flout")
    with pytest.raises(SpecError, match="domain must be"):
        make(shape=(1,), domain="both")
    with pytest.raises(ArgumentError, match="shape must be an integer"):
        make(shape="big")


def test_the_shape_follows_from_arrays() -> None:
    assert Bounded(np.zeros((2, 3)), np.ones((2, 3))).shape == (2, 3)
    assert Bounded(torch.zeros(3), 1.0).shape == (3,)
    assert Bounded([0, 1], [2, 3]).shape == (2,)
    assert Bounded(-1, 1, 3).shape == (3,)
    assert Bounded(torch.zeros(3), 1.0, shape=(2, 3)).low.shape == (2, 3)


def test_invalid_bounds() -> None:
    with pytest.raises(SpecError, match="cannot infer the shape of a Bounded"):
        Bounded(-1, 1)
    with pytest.raises(SpecError, match=r"do not broadcast to \(2, 2\)"):
        Bounded(torch.zeros(3), 1, shape=(2, 2))
    with pytest.raises(SpecError, match=r"low of shape \(2,\) and high of shape \(3,\)"):
        Bounded(torch.zeros(2), torch.ones(3))
    with pytest.raises(SpecError, match="low must not be above high"):
        Bounded(2, 1, (3,))
    with pytest.raises(SpecError, match="low must not be above high"):
        Bounded(torch.tensor([0.0, 3.0]), 1)
    with pytest.raises(SpecError, match="low must not be above high"):
        Bounded(math.nan, 1.0, (2,))
    with pytest.raises(SpecError, match="low is NaN"):
        Bounded(math.nan, 1, (2,), dtype=torch.int64)
    with pytest.raises(SpecError, match="no order"):
        Bounded(0, 1, (2,), dtype=torch.complex64)
    with pytest.raises(SpecError, match="low must contain numbers"):
        Bounded(np.array(["a"]), 1)


def test_bounds_are_copied_from_arrays() -> None:
    low, high = torch.zeros(3), np.ones(3, dtype=np.float32)
    spec = Bounded(low, high)
    low.fill_(-9)
    high.fill(9)
    assert spec.low.tolist() == [0, 0, 0]
    assert spec.high.tolist() == [1, 1, 1]


@pytest.mark.parametrize("dtype", REALS)
def test_the_extremes_of_a_dtype(dtype: torch.dtype) -> None:
    spec = Bounded(-INF, INF, (200,), dtype=dtype)
    value = spec.rand()
    assert spec.is_in(value)
    assert value.double().isfinite().all()
    assert len(set(value.tolist())) > (1 if dtype is torch.bool else 50)
    ends = torch.stack([spec.low[0], spec.high[0]])
    assert spec.expand(2, 200)[:, 0].is_in(ends)
    if dtype in INTEGERS:
        info = torch.iinfo(dtype)
        assert (spec.low.tolist()[0], spec.high.tolist()[0]) == (info.min, info.max)


@pytest.mark.parametrize("dtype", FLOATS)
def test_ranges_wider_than_the_dtype(dtype: torch.dtype) -> None:
    info = torch.finfo(dtype)
    spec = Bounded(info.min, info.max, (100,), dtype=dtype)
    value = spec.rand()
    assert spec.is_in(value)
    assert value.isfinite().all()
    assert (value > 0).any()
    assert (value < 0).any()


def test_integers_are_uniform_with_both_bounds() -> None:
    for dtype in INTEGERS:
        drawn = Bounded(1, 3, (3000,), dtype=dtype).rand().long()
        counts = torch.bincount(drawn, minlength=5)
        assert counts[0] == counts[4] == 0
        assert (counts[1:4] > 900).all()


def test_wide_integers_reach_every_bit() -> None:
    spec = Bounded(-(2**62), 2**62, (500,), dtype=torch.int64)
    value = spec.rand()
    assert spec.is_in(value)
    assert (value % 2 == 1).any()
    assert (value % 2 == 0).any()
    torch.manual_seed(5)
    first = spec.rand()
    torch.manual_seed(5)
    assert torch.equal(first, spec.rand())


def test_infinite_bounds() -> None:
    below = Bounded(low=2.0, shape=(500,))
    assert below.high.isinf().all()
    assert below.rand().min() >= 2
    assert 2.5 < below.rand().mean() < 3.5
    above = Bounded(high=-1.0, shape=(500,))
    assert above.rand().max() <= -1
    both = Bounded(-INF, INF, (2000,)).rand()
    assert abs(both.mean()) < 0.1
    assert 0.9 < both.std() < 1.1
    mixed = Bounded(torch.tensor([-INF, -1.0, -INF, 0.0]), torch.tensor([0.0, INF, INF, 1.0]))
    value = mixed.rand((100,))
    assert mixed.is_in(value)
    assert value.isfinite().all()
    assert mixed.is_in(torch.tensor([-INF, INF, INF, 0.5]))


def test_bounded_excludes_nan() -> None:
    value = torch.tensor([math.nan, 0.0])
    assert not Bounded(-1.0, 1.0, (2,)).is_in(value)
    assert not Bounded(-INF, INF, (2,)).is_in(value)
    assert Unbounded(2).is_in(value)
    assert Bounded(1.0, 2.0, (2,)).project(value).tolist() == [1.0, 1.0]
    assert Bounded(-1.0, 1.0, (2,)).project(value).tolist() == [0.0, 0.0]


def test_is_in_needs_dtype_and_trailing_shape() -> None:
    spec = Bounded(-1.0, 1.0, (3,))
    assert spec.is_in(torch.zeros(3))
    assert spec.is_in(torch.zeros(5, 4, 3))
    assert not spec.is_in(torch.zeros(3, dtype=torch.float64))
    assert not spec.is_in(torch.zeros(2))
    assert not spec.is_in(torch.tensor(0.0))
    assert not spec.is_in(np.zeros(3, dtype=np.float32))
    assert spec.is_in(torch.tensor([-1.0, 0.0, 1.0]))
    reason = spec.why_not_in(torch.tensor([0.0, 0.0, 2.0]))
    assert reason == "a value is outside the bounds, which range from -1 to 1"


def test_project_casts_and_clamps() -> None:
    spec = Bounded(0, 255, (4,), dtype=torch.uint8)
    value = torch.tensor([-3.0, 0.6, 254.6, 1e30])
    assert spec.project(value).tolist() == [0, 1, 255, 255]
    assert spec.project(value).dtype is torch.uint8
    signed = Bounded(-5, 5, (3,), dtype=torch.int64)
    assert signed.project(torch.tensor([-INF, INF, math.nan])).tolist() == [-5, 5, 0]
    assert Bounded(0, 1, (2,), dtype=torch.bool).project(torch.tensor([-1.0, 3.0])).tolist() == [
        False,
        True,
    ]
    with pytest.raises(SpecError, match=r"ending in torch.Size\(\[4\]\), got torch.Size\(\[3\]\)"):
        spec.project(torch.zeros(3))
    with pytest.raises(SpecError, match="expected a tensor, got a list"):
        spec.project([1, 2, 3, 4])


def test_bounds_outside_the_dtype_are_rounded_inwards() -> None:
    assert Bounded(-1, 300, (1,), dtype=torch.uint8).low.item() == 0
    assert Bounded(-1, 300, (1,), dtype=torch.uint8).high.item() == 255
    halves = Bounded(0.5, 2.5, (1,), dtype=torch.int64)
    assert (halves.low.item(), halves.high.item()) == (1, 2)
    arrays = Bounded(np.array([0.5, -INF]), np.array([2.5, INF]), dtype=torch.int32)
    assert arrays.low.tolist() == [1, -(2**31)]
    assert arrays.high.tolist() == [2, 2**31 - 1]
    assert Bounded(0, 1e300, (1,)).high.isinf().all()
    with pytest.raises(SpecError, match="low must not be above high"):
        Bounded(0.2, 0.8, (1,), dtype=torch.int64)


def test_to_a_dtype() -> None:
    image = Bounded(0, 255, (2,), dtype=torch.uint8)
    real = image.to(torch.float32)
    assert type(real) is BoundedContinuous
    assert real.high.tolist() == [255, 255]
    assert real.to("uint8") == image
    assert Bounded(-1, 1, 3).to(torch.int64).cardinality() == 27
    assert Bounded(low=0.0, shape=(2,)).to(torch.float64).high.isinf().all()
    assert image.to(torch.uint8) is image
    assert type(Unbounded(3).to(torch.int64)) is UnboundedDiscrete
    assert Unbounded(3).to("meta").device == torch.device("meta")
    assert Unbounded(3).to(torch.device("meta")).rand().device.type == "meta"


def test_replace_converts_between_bounded_and_unbounded() -> None:
    spec = Bounded(-1.0, 1.0, (3,))
    assert spec.replace(shape=(5, 2)) == Bounded(-1.0, 1.0, (5, 2))
    assert spec.replace(high=2.0) == Bounded(-1.0, 2.0, (3,))
    assert spec.replace(dtype=torch.float64) == Bounded(-1.0, 1.0, (3,), dtype=torch.float64)
    assert spec.replace(low=None).low.isinf().all()
    assert spec.replace(low=None, high=None) == Unbounded(3)
    assert Unbounded(3).replace(low=-1.0, high=1.0) == spec
    assert Unbounded(3).replace(high=0.0).rand().max() <= 0
    assert Unbounded(3).replace(shape=(2,), dtype=torch.int8) == Unbounded(2, dtype=torch.int8)
    with pytest.raises(SpecError, match="do not broadcast"):
        Bounded([0, 1], [2, 3]).replace(shape=(3,))
    assert Bounded([0, 1], [2, 3]).replace(shape=(4, 2)).low.shape == (4, 2)
    assert Bounded(0, 5, (2,), domain="discrete").replace(shape=(1,)).domain == "discrete"


def test_spaces() -> None:
    box = Bounded(-1.0, 1.0, (3,)).space
    low, high = box
    assert torch.equal(low, torch.full((3,), -1.0))
    assert torch.equal(high, box.high)
    assert box == Bounded(-1.0, 1.0, (3,)).space
    assert box != Bounded(-1.0, 2.0, (3,)).space
    assert box.to(torch.float64).low.dtype is torch.float64
    assert box.clone() == box
    free = Unbounded(2).space
    assert free is not None
    assert free.low.tolist() == [torch.finfo(torch.float32).min] * 2
    assert Unbounded(2, dtype=torch.complex64).space is None
    assert Unbounded(1, dtype=torch.complex64).rand().is_complex()


def test_cardinality_and_enumerate() -> None:
    assert Bounded(0, 1, (2,), dtype=torch.bool).cardinality() == 4
    grid = Bounded([0, -1], [1, 1], dtype=torch.int8)
    assert grid.cardinality() == 6
    rows = grid.enumerate()
    assert rows.tolist() == [[0, -1], [0, 0], [0, 1], [1, -1], [1, 0], [1, 1]]
    assert grid.is_in(rows)
    assert Bounded(0, 3, (), dtype=torch.int64).enumerate().tolist() == [0, 1, 2, 3]
    assert Bounded(0, 3, (0,), dtype=torch.int64).enumerate().shape == (1, 0)
    assert Bounded(0, 1, (2,)).cardinality() == INF
    assert Unbounded(2).cardinality() == INF
    for spec in (Bounded(0, 1, (2,)), Unbounded(2), Bounded(0, 9, (99,), dtype=torch.int64)):
        with pytest.raises(SpecError, match="cannot be enumerated"):
            spec.enumerate()


def test_empty_shapes() -> None:
    for spec in (Bounded(0, 1, (2, 0)), Unbounded((0,)), Bounded(0, 9, 0, dtype=torch.int64)):
        value = spec.rand((3,))
        assert value.shape == (3, *spec.shape)
        assert spec.is_in(value)
        assert torch.equal(spec.project(value), value)
        assert spec.why_not_in(value) is None


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (1.5, [1.5]),
        (3, [3.0]),
        ([2], [2.0]),
        (np.array(2.0), [2.0]),
        (np.float64(2.0), [2.0]),
        (np.array([[2]], dtype=np.uint8), [2.0]),
        (torch.tensor([[2]]), [2.0]),
        ([np.ones(1)], [1.0]),
        ([torch.tensor(4)], [4.0]),
        (True, [1.0]),
    ],
)
def test_encode_numbers_lists_and_arrays(value: Any, expected: list[float]) -> None:
    encoded = Unbounded(1).encode(value)
    assert encoded.tolist() == expected
    assert encoded.dtype is torch.float32


def test_encode_copies_arrays() -> None:
    frame = np.zeros((2, 2), dtype=np.uint8)
    encoded = Bounded(0, 255, (2, 2), dtype=torch.uint8).encode(frame)
    frame.fill(9)
    assert encoded.sum() == 0
    assert Unbounded(3).encode(np.arange(3.0)[::-1]).tolist() == [2, 1, 0]


def test_encode_rejects_values_that_do_not_fit() -> None:
    with pytest.raises(SpecError, match=r"expected a value of shape torch.Size\(\[3\]\)"):
        Unbounded(3).encode(np.zeros((4, 3)))
    with pytest.raises(SpecError, match=r"does not fit torch\.uint8"):
        Bounded(0, 255, (2,), dtype=torch.uint8).encode([1, 300])
    with pytest.raises(SpecError, match=r"does not fit torch\.int8"):
        Unbounded(1, dtype=torch.int8).encode(np.array([200]))
    with pytest.raises(SpecError, match="cannot convert a str to a tensor"):
        Unbounded(1).encode("north")
    with pytest.raises(SpecError, match="cannot convert a list to a tensor"):
        Unbounded(2).encode([1, "north"])


def test_encode_moves_tensors_unless_ignore_device() -> None:
    value = torch.zeros(3, device="meta")
    assert Unbounded(3, device="meta").encode(torch.zeros(3)).device.type == "meta"
    assert Unbounded(3).encode(value, ignore_device=True).device.type == "meta"


def test_to_numpy_of_dtypes_missing_in_numpy() -> None:
    array = Unbounded(2, dtype=torch.bfloat16).to_numpy(torch.ones(2, dtype=torch.bfloat16))
    assert array.dtype == np.float32
    with pytest.raises(AssertionError, match="outside the bounds"):
        Bounded(0, 1, (1,)).to_numpy(torch.full((1,), 2.0), safe=True)


def test_unknown_sizes() -> None:
    for spec in (Unbounded((4, 3)), Bounded(0.0, 1.0, (4, 3))):
        open_spec = spec.make_neg_dim(0)
        assert open_spec.shape == (-1, 3)
        assert open_spec.is_in(torch.zeros(7, 3))
        assert not open_spec.is_in(torch.zeros(7, 2))
        assert open_spec.rand().shape == (1, 3)
        assert open_spec.unsqueeze(0).shape == (1, -1, 3)
        assert open_spec.encode(np.zeros((5, 3))).shape == (5, 3)


def test_dimensions_out_of_range() -> None:
    for call in (
        lambda: Unbounded(3).unbind(1),
        lambda: Unbounded(3)[0, 0],
        lambda: Unbounded(3).make_neg_dim(2),
        lambda: Unbounded(3).reshape(2),
        lambda: Bounded(0, 1, (3,)).unsqueeze(5),
        lambda: len(Unbounded(())),
    ):
        with pytest.raises(SpecError):
            call()
    assert Unbounded((2, 3)).index_select(1, torch.tensor([0, 2])).shape == (2, 2)
    assert len(Unbounded((2, 3))) == 2
    with pytest.raises(SpecError, match="cannot be used as an index"):
        Unbounded(3).index(torch.tensor(0), torch.zeros(3))


@pytest.mark.parametrize(
    ("spec", "bounds", "expected"),
    [
        (Bounded(-5.0, 1.0, shape=(2,)), (0.0, 9.0), (0.0, 1.0)),
        (Unbounded(2), (-1.0, None), (-1.0, math.inf)),
        (Unbounded(2, dtype=torch.uint8), (3, 200), (3, 200)),
        (Binary(2), (0.5, None), (0.5, 1.0)),
        (Bounded(3, 7, shape=(2,), dtype=torch.int64), (None, 5), (3, 5)),
    ],
)
def test_clamp_spec(
    spec: TensorSpec, bounds: tuple[Any, Any], expected: tuple[float, float]
) -> None:
    clamped = clamp_spec(spec, *bounds)
    assert isinstance(clamped, Bounded)
    assert (clamped.low[0].item(), clamped.high[0].item()) == expected
    assert clamped.is_in(spec.rand().clamp(*bounds))
    assert clamp_spec(spec, None, None) is spec


def test_clamp_spec_outside_the_dtype() -> None:
    with pytest.raises(SpecError, match=r"do not fit torch\.uint8"):
        clamp_spec(Unbounded(1, dtype=torch.uint8), 300, 400)


def test_setting_shape_device_and_dtype() -> None:
    spec = Bounded(0, 255, (2, 3), dtype=torch.uint8)
    other = spec.clone()
    spec.shape = (4, 5)
    spec.dtype = torch.int64
    assert spec == Bounded(0, 255, (4, 5), dtype=torch.int64)
    spec.device = "meta"
    assert spec.device == torch.device("meta")
    assert other == Bounded(0, 255, (2, 3), dtype=torch.uint8)
    free = Unbounded(3)
    free.shape, free.dtype = 2, torch.float64
    assert free == Unbounded(2, dtype=torch.float64)
    with pytest.raises(SpecError, match="do not broadcast"):
        Bounded([0, 1], [2, 3]).shape = (3,)


def test_a_spec_does_not_change_its_class() -> None:
    spec = Bounded(0, 255, (2,), dtype=torch.uint8)
    with pytest.raises(SpecError, match="BoundedDiscrete cannot become a BoundedContinuous in pl"):
        spec.dtype = torch.float32
    with pytest.raises(SpecError, match="the bounds of a BoundedDiscrete cannot be"):
        spec.space.low = torch.zeros(2)
    assert spec == Bounded(0, 255, (2,), dtype=torch.uint8)
    assert isinstance(spec.to(torch.float32), BoundedContinuous)


def test_setting_the_bounds_of_a_space_changes_the_spec() -> None:
    spec = Bounded(0.0, 255.0, (2, 3))
    other = spec.clone()
    spec.rand()
    space = spec.space
    space.low = space.low.flatten() / 255 - 1
    space.high = space.high.flatten() / 255
    assert spec == Bounded(-1.0, 1.0, (6,))
    spec.shape = space.low.shape
    assert spec == Bounded(-1.0, 1.0, (6,))
    assert spec.is_in(spec.rand())
    spec.space.low += 1.5
    assert spec.low.tolist() == [0.5] * 6
    assert float(spec.rand((100,)).min()) >= 0.5
    assert other == Bounded(0.0, 255.0, (2, 3))


def test_bounds_read_from_a_space_are_copies() -> None:
    spec = Bounded(torch.zeros(2), torch.ones(2))
    low, _ = spec.space
    low += 9
    assert spec == Bounded(0.0, 1.0, (2,))


def test_setting_a_space() -> None:
    spec = Bounded(0.0, 1.0, (2,))
    spec.space = ContinuousBox(torch.full((2,), -3.0), torch.zeros(2))
    assert spec == Bounded(-3.0, 0.0, (2,))
    free = Unbounded(2)
    free.space = free.space
    assert free == Unbounded(2)
    with pytest.raises(SpecError, match="in place"):
        free.space = Bounded(0.0, 1.0, (2,)).space
    with pytest.raises(SpecError, match="is a ContinuousBox"):
        spec.space = Categorical(3).space  # type: ignore[assignment]


@pytest.mark.parametrize("dtype", [torch.int64, torch.uint64], ids=str)
@pytest.mark.parametrize("width", [2**63 - 6, 3 * 2**61, 2**64 - 1, None])
def test_wide_integers_at_uniform_numbers_follow_no_pattern(
    dtype: torch.dtype, width: int | None
) -> None:
    most = torch.iinfo(dtype).max
    low, high = (0, most) if width is None else (most - width, most)
    spec: TensorSpec = Unbounded(4096, dtype=dtype)
    if width is not None:
        spec = Bounded(low, high, (4096,), dtype=dtype)
    generator = torch.Generator().manual_seed(0)
    values = spec.rand_at(torch.rand(4096, dtype=torch.float64, generator=generator))
    assert values is not None
    numbers = values.tolist()
    eighths = Counter((number - low) * 8 // (high - low + 1) for number in numbers)
    assert sorted(eighths) == list(range(8))
    last_bits = Counter(number % 8 for number in numbers)
    assert all(abs(count - 512) < 128 for count in [*eighths.values(), *last_bits.values()])

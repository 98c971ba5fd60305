"""A spec of every class, and random specs."""

from __future__ import annotations

from typing import Any

import torch
from hypothesis import strategies as st

from tdx.specs import (
    Binary,
    Bounded,
    Categorical,
    Choice,
    Composite,
    MultiCategorical,
    MultiOneHot,
    NonTensor,
    OneHot,
    Unbounded,
)

FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
INTEGERS = [
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.uint16,
    torch.uint32,
    torch.uint64,
]
REALS = [*FLOATS, *INTEGERS, torch.bool]


def stack(*specs: Any, dim: int = 0) -> Any:
    """``torch.stack`` of specs, which torch does not declare."""
    return torch.stack(list(specs), dim)


MASK = torch.tensor([True, False, True])

LEAVES: dict[str, Any] = {
    "unbounded": Unbounded((2, 3)),
    "unbounded scalar": Unbounded(()),
    "unbounded empty": Unbounded((0, 3)),
    "unbounded int": Unbounded((2,), dtype=torch.int64),
    "unbounded complex": Unbounded((2,), dtype=torch.complex64),
    "bounded": Bounded(-1.0, 1.0, (2, 3)),
    "bounded image": Bounded(0, 255, (4, 4, 3), dtype=torch.uint8),
    "bounded each": Bounded(torch.tensor([-1.0, 0.0]), torch.tensor([0.0, 5.0])),
    "bounded below": Bounded(low=0.0, shape=(3,)),
    "bounded above": Bounded(high=0.0, shape=(3,)),
    "bounded empty": Bounded(0, 1, (2, 0)),
    "categorical": Categorical(4),
    "categorical batch": Categorical(4, (2, 3)),
    "categorical masked": Categorical(3, (2,), mask=MASK),
    "binary": Binary(3),
    "one-hot": OneHot(4),
    "one-hot batch": OneHot(4, (2, 3, 4)),
    "one-hot int": OneHot(4, dtype=torch.int64),
    "one-hot masked": OneHot(3, (2, 3), mask=MASK),
    "multi-categorical": MultiCategorical([2, 3]),
    "multi-categorical batch": MultiCategorical([2, 3], (4, 2)),
    "multi-categorical nested": MultiCategorical([[2, 3], [4, 5]]),
    "multi-categorical masked": MultiCategorical(
        [2, 3], mask=torch.tensor([True, False, False, True, True])
    ),
    "multi-one-hot": MultiOneHot([2, 3]),
    "multi-one-hot batch": MultiOneHot([2, 3], (4, 5)),
    "multi-one-hot masked": MultiOneHot(
        [2, 3], mask=torch.tensor([True, False, False, True, True])
    ),
    "choice": Choice([Categorical(2), Categorical(5)]),
}
STACKS: dict[str, Any] = {
    "stack of categories": stack(Categorical(2, (3,)), Categorical(5, (3,))),
    "stack along 1": stack(Bounded(0, 1, (3,)), Bounded(0, 2, (3,)), dim=1),
}
COMPOSITES: dict[str, Any] = {
    "empty": Composite(),
    "flat": Composite(a=Unbounded(3), b=Categorical(4)),
    "nested": Composite({("x", "y"): Bounded(0, 1, (3,)), "z": Binary(2), "x": {"w": OneHot(3)}}),
    "batched": Composite(a=Unbounded((2, 3)), n=Composite(b=Categorical(5, (2,))), shape=(2,)),
    "on a device": Composite(a=Unbounded(3), n=Composite(b=Unbounded(1)), device="cpu"),
    "with None": Composite(a=Unbounded(3), b=None),
    "with text": Composite(a=Unbounded(3), t=NonTensor((), example_data="north")),
    "stack of composites": stack(
        Composite(a=Unbounded(3)), Composite(a=Unbounded(4), b=Unbounded(1))
    ),
}
ALL: dict[str, Any] = {**LEAVES, **STACKS, **COMPOSITES}


def copies(specs: dict[str, Any]) -> list[Any]:
    """Copies, so that no test changes another's."""
    return [spec.clone() for spec in specs.values()]


shapes = st.lists(st.integers(0, 3), max_size=3).map(tuple)


@st.composite
def bounded(draw: st.DrawFn, dtypes: list[torch.dtype] | None = None) -> Bounded:
    """A ``Bounded`` of any dtype, with closed and open ends."""
    dtype = draw(st.sampled_from(dtypes or REALS))
    if dtype.is_floating_point:
        info = torch.finfo(dtype)
        number = st.floats(allow_nan=False, width=64) | st.sampled_from([info.min, info.max, 0.0])
    elif dtype is torch.bool:
        number = st.integers(0, 1)
    else:
        limits = torch.iinfo(dtype)
        number = st.integers(limits.min, limits.max) | st.integers(0, 5)
    shape = draw(shapes)
    ends = sorted([draw(number), draw(number)])
    low: Any = draw(st.sampled_from([ends[0], None]))
    high: Any = draw(st.sampled_from([ends[1], None]))
    if draw(st.booleans()) and dtype.is_floating_point and shape:
        low = torch.full(shape, ends[0] if low is None else low, dtype=torch.float64)
    return Bounded(low, high, shape, dtype=dtype)


@st.composite
def discrete(draw: st.DrawFn) -> Any:
    """A spec of categories, masked or not."""
    lead = draw(shapes)
    nvec = draw(st.lists(st.integers(1, 4), min_size=1, max_size=3))
    total = sum(nvec)
    kind = draw(st.sampled_from(["categorical", "one-hot", "multi", "multi one-hot", "binary"]))
    if kind == "binary":
        return Binary(shape=(*lead, 3))
    if kind in ("multi", "multi one-hot"):
        mask = None
        if draw(st.booleans()):
            blocks = [torch.arange(n) == draw(st.integers(0, n - 1)) for n in nvec]
            mask = torch.cat(blocks) | (torch.rand(total) < 0.5)
        if kind == "multi":
            return MultiCategorical(nvec, (*lead, len(nvec)), mask=mask)
        return MultiOneHot(nvec, (*lead, total), mask=mask)
    n = nvec[0]
    mask = None
    if draw(st.booleans()):
        mask = (torch.arange(n) == draw(st.integers(0, n - 1))) | (torch.rand(*lead, n) < 0.5)
    if kind == "categorical":
        dtype = draw(st.sampled_from([torch.int64, torch.int8, torch.uint8, torch.float32]))
        return Categorical(n, lead, dtype=dtype, mask=mask)
    return OneHot(n, (*lead, n), mask=mask)


leaves = bounded() | discrete() | st.builds(Unbounded, shapes, dtype=st.sampled_from(REALS))

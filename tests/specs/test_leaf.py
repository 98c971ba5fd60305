"""Specs as plain data."""

from __future__ import annotations

import json
import math

import pytest
import torch

from tdx.specs import (
    Binary,
    Bounded,
    Categorical,
    Composite,
    MultiCategorical,
    MultiOneHot,
    NonTensor,
    OneHot,
    TensorSpec,
    Unbounded,
)
from tdx.specs.leaf import MAX_LISTED_BOUNDS, Domain, composite_leaves, leaf_spec


@pytest.mark.parametrize(
    ("spec", "domain"),
    [
        (Bounded(-2.0, 2.0, shape=(3,)), Domain(-2.0, 2.0)),
        (Bounded(torch.tensor([-1.0, -8.0]), torch.tensor([1.0, 8.0])), Domain([-1, -8], [1, 8])),
        (Bounded(0, 255, shape=(2, 2), dtype=torch.uint8), Domain(0, 255)),
        (Unbounded((3,)), Domain()),
        (Categorical(5), Domain(choices=5)),
        (OneHot(5), Domain(choices=5)),
        (Binary(4), Domain(choices=2)),
        (MultiCategorical([2, 3]), Domain(choices=(2, 3))),
        (MultiCategorical([2, 3]).expand(4, 2), Domain(choices=(2, 3))),
        (MultiOneHot([2, 3]), Domain(choices=(2, 3))),
        (NonTensor(()), Domain()),
        (Bounded(0, 9, shape=(MAX_LISTED_BOUNDS + 1,), dtype=torch.int8), Domain(0, 9)),
    ],
    ids=lambda value: type(value).__name__,
)
def test_domain(spec: TensorSpec, domain: Domain) -> None:
    leaf = leaf_spec("observation", "x", spec)
    assert leaf.domain == domain
    assert leaf.shape == tuple(spec.shape)


def test_infinite_bounds_are_json_serializable() -> None:
    low = torch.tensor([-math.inf, -1.0])
    leaf = leaf_spec("observation", ("agents", "x"), Bounded(low, -low))
    written = json.loads(json.dumps(leaf.to_dict(), allow_nan=False))
    assert written["low"] == ["-inf", -1.0]
    assert written["high"] == ["inf", 1.0]
    assert written["key"] == "agents.x"
    assert written["dtype"] == "float32"


def test_leaves_are_sorted_by_part() -> None:
    one = Unbounded((1,))
    output = Composite(
        full_done_spec=Composite(done=Categorical(2, shape=(1,), dtype=torch.bool)),
        full_observation_spec=Composite(agents=Composite(seen=one)),
        full_reward_spec=Composite(reward=one),
    )
    leaves = composite_leaves(Composite(full_action_spec=Composite(action=one)), output)
    assert [(leaf.part, leaf.key) for leaf in leaves] == [
        ("observation", ("agents", "seen")),
        ("reward", "reward"),
        ("done", "done"),
        ("action", "action"),
    ]


def test_many_bounds_are_identified_by_a_digest() -> None:
    many = torch.arange(1.0, MAX_LISTED_BOUNDS + 2)

    def domain_of(low: torch.Tensor) -> Domain:
        return leaf_spec("observation", "x", Bounded(-low, many)).domain

    rising, falling = domain_of(many), domain_of(many.flip(0))
    assert (rising.low, rising.high) == (-float(len(many)), float(len(many)))
    assert rising == domain_of(many)
    assert rising != falling
    assert rising.to_dict()["digest"] == rising.digest != falling.digest


def test_large_bounds_are_reduced_along_equal_dims() -> None:
    low = torch.tensor([0.0, -1.0, -2.0]).reshape(3, 1, 1).expand(3, 84, 84)
    leaf = leaf_spec("observation", "pixels", Bounded(low, torch.full((3, 84, 84), 5.0)))
    assert leaf.shape == (3, 84, 84)
    assert leaf.domain == Domain([[[0.0]], [[-1.0]], [[-2.0]]], 5.0)
    noisy = torch.ones(3, 84, 84) - torch.rand(3, 84, 84, generator=torch.manual_seed(0)) * 1e-6
    written = leaf_spec("observation", "pixels", Bounded(low, noisy)).to_dict()
    assert len(json.dumps(written)) < 500


@pytest.mark.parametrize(
    "spec",
    [
        Bounded(-1.0, 1.0, shape=(3,), device="meta"),
        MultiCategorical([2, 3], device="meta"),
        Categorical(3, device="meta"),
        Unbounded((2,), device="meta"),
    ],
)
def test_meta_spec_has_no_domain(spec: TensorSpec) -> None:
    leaf = leaf_spec("observation", "observation", spec)
    assert (leaf.device, leaf.shape) == ("meta", tuple(spec.shape))
    assert leaf.domain.low is None

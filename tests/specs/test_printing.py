"""The ``repr`` of specs is that of the reference documents."""

from __future__ import annotations

import textwrap
from typing import Any

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
    Unbounded,
)
from tests.specs.kinds import stack

BOUNDED = """\
BoundedContinuous(
    shape=torch.Size([1]),
    space=ContinuousBox(
        low=Tensor(shape=torch.Size([1]), device=cpu, dtype=torch.float32, contiguous=True),
        high=Tensor(shape=torch.Size([1]), device=cpu, dtype=torch.float32, contiguous=True)),
    device=cpu,
    dtype=torch.float32,
    domain=continuous)"""

UNBOUNDED = BOUNDED.replace("BoundedContinuous", "UnboundedContinuous")

DONE = """\
Categorical(
    shape=torch.Size([1]),
    space=CategoricalBox(n=2),
    device=cpu,
    dtype=torch.bool,
    domain=discrete)"""

INPUT_SPEC = """\
Composite(
    full_state_spec: None,
    full_action_spec: Composite(
        action: BOUNDED, device=cpu, shape=torch.Size([])), device=cpu, shape=torch.Size([]))"""

OUTPUT_SPEC = """\
Composite(
    full_reward_spec: Composite(
        reward: UNBOUNDED, device=cpu, shape=torch.Size([])),
    full_observation_spec: Composite(
        observation: BOUNDED, device=cpu, shape=torch.Size([])),
    full_done_spec: Composite(
        done: DONE, device=cpu, shape=torch.Size([])), device=cpu, shape=torch.Size([]))"""

STACKED = """\
StackedComposite(
    fields={
        a: StackedUnboundedContinuous(
            shape=torch.Size([2, -1]), device=cpu, dtype=torch.float32, domain=continuous)},
    exclusive_fields={
        1 ->
            b: Categorical(
                shape=torch.Size([]),
                space=CategoricalBox(n=3),
                device=cpu,
                dtype=torch.int64,
                domain=discrete)},
    device=None,
    shape=torch.Size([2]),
    stack_dim=0)"""


def filled(text: str) -> str:
    """The text with each leaf written out, at the depth where all of them are: two levels."""
    for name, leaf in (("UNBOUNDED", UNBOUNDED), ("BOUNDED", BOUNDED), ("DONE", DONE)):
        text = text.replace(name, textwrap.indent(leaf, "    " * 2).strip())
    return text


def on_cpu(**entries: Any) -> Composite:
    return Composite(entries, device="cpu")


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        (Bounded(-2.0, 2.0, (1,)), BOUNDED),
        (Unbounded(1), UNBOUNDED),
        (Categorical(2, (1,), dtype=torch.bool), DONE),
        (Composite(device="cpu"), "Composite(\n, device=cpu, shape=torch.Size([]))"),
        (Composite(shape=(2,)), "Composite(\n, device=None, shape=torch.Size([2]))"),
        (
            on_cpu(full_state_spec=None, full_action_spec=on_cpu(action=Bounded(-2.0, 2.0, (1,)))),
            filled(INPUT_SPEC),
        ),
        (
            on_cpu(
                full_reward_spec=on_cpu(reward=Unbounded(1)),
                full_observation_spec=on_cpu(observation=Bounded(-1.0, 1.0, (1,))),
                full_done_spec=on_cpu(done=Categorical(2, (1,), dtype=torch.bool)),
            ),
            filled(OUTPUT_SPEC),
        ),
        (
            stack(Composite(a=Unbounded(3)), Composite(a=Unbounded(4), b=Categorical(3))),
            STACKED,
        ),
    ],
)
def test_repr_as_documented(spec: Any, expected: str) -> None:
    assert str(spec) == repr(spec) == expected


@pytest.mark.parametrize(
    ("spec", "space"),
    [
        (OneHot(3), "CategoricalBox(n=3)"),
        (Binary(3), "CategoricalBox(n=2)"),
        (
            MultiCategorical([2, 3], (4, 2)),
            "BoxList(boxes=[CategoricalBox(n=2), CategoricalBox(n=3)])",
        ),
        (MultiOneHot([2, 3]), "BoxList(boxes=[CategoricalBox(n=2), CategoricalBox(n=3)])"),
        (Unbounded(1, dtype=torch.complex64), "None"),
    ],
)
def test_spaces(spec: Any, space: str) -> None:
    assert f"    space={space}," in repr(spec).splitlines()


def test_non_tensors_print_their_example() -> None:
    assert repr(NonTensor((2,), example_data="north")) == (
        "NonTensor(\n    shape=torch.Size([2]),\n    space=None,\n    device=None,\n"
        "    dtype=None,\n    domain=None,\n    example_data=north)"
    )

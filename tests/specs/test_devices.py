"""Specs on an accelerator."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tdx.specs import Composite, Unbounded
from tests.specs import kinds

pytestmark = pytest.mark.gpu

everything = pytest.mark.parametrize("spec", kinds.copies(kinds.ALL), ids=list(kinds.ALL))


@everything
def test_values_are_on_the_device_of_the_spec(spec: Any) -> None:
    moved = spec.to("cuda")
    value = moved.rand((3,))
    assert value.device == moved.device == torch.device("cuda", torch.cuda.current_device())
    assert moved.is_in(value)
    assert moved.is_in(moved.project(value))
    assert moved.to("cuda") == moved
    assert moved.to("cpu") == spec.to("cpu")
    assert moved.zero().device == moved.device


@everything
def test_shapes_stay_on_the_device(spec: Any) -> None:
    wide = spec.cuda().expand(4, *spec.shape)
    assert wide[1] == spec.cuda()
    assert wide[[0, 2]].is_in(wide.rand()[[0, 2]])


def test_values_on_another_device_are_not_in_the_spec() -> None:
    spec = Composite(a=Unbounded(3)).to("cuda")
    assert not spec.is_in(Composite(a=Unbounded(3)).rand())
    assert "expected device cuda" in str(spec.why_not_in({"a": torch.zeros(3)}))
    assert spec.is_in(spec.project({"a": torch.zeros(3)}))

"""Specs of data."""

from __future__ import annotations

from typing import Any

import torch
from tensordict import TensorClass, TensorDict

from tdx import Composite, NonTensor, Unbounded, make_composite_from_td


def test_the_spec_of_a_tensordict() -> None:
    data = TensorDict(
        {
            "observation": torch.randn(4, 3),
            "count": torch.zeros(4, dtype=torch.int32),
            "next": {"done": torch.zeros(4, 1, dtype=torch.bool)},
            "task": "walk",
        },
        [4],
    )
    spec = make_composite_from_td(data)
    assert spec.shape == (4,)
    assert spec["observation"] == Unbounded((4, 3))
    assert spec["count"].dtype is torch.int32
    assert spec["next", "done"].dtype is torch.bool
    task = spec["task"]
    assert isinstance(task, NonTensor)
    assert task.example_data == "walk"
    assert spec.is_in(data)
    assert make_composite_from_td(data, dynamic_shape=True)["observation"].shape == (4, -1)
    assert make_composite_from_td(data, dynamic_shape=True)["count"].shape == (4,)


def test_numbers_without_dims() -> None:
    data = TensorDict(step=torch.tensor(1))
    assert make_composite_from_td(data)["step"].shape == (1,)
    assert make_composite_from_td(data, unsqueeze_null_shapes=False)["step"].shape == ()


class Scene(TensorClass):  # type: ignore[misc]
    camera: torch.Tensor
    name: str
    extra: Any


def test_the_spec_of_a_tensorclass_creates_one() -> None:
    scene = Scene(camera=torch.ones(5, 3), name="a", extra={1: 2}, batch_size=[5])
    spec = make_composite_from_td(TensorDict(scene=scene, batch_size=[5]))
    inner = spec["scene"]
    assert isinstance(inner, Composite)
    created = spec.zero()["scene"]
    assert isinstance(created, Scene)
    assert created.name == "a"
    assert created.camera.shape == (5, 3)

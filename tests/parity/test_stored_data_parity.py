"""Every transform against the oracle's on stored data and images, value by value."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tensordict import TensorDict
from torch import Tensor

import tdx
from tests.parity.twins import (
    ORACLE,
    Doubles,
    assert_same_values,
    chained,
    fixed_rollout,
    leaves,
)

pytestmark = pytest.mark.filterwarnings("ignore")


def test_doubles_without_an_env() -> None:
    data = {
        "a": torch.rand(3).double(),
        "n": TensorDict(b=torch.rand(2).double()),
        "c": torch.ones(1),
    }
    ours, theirs = (m.DoubleToFloat()(TensorDict(data).clone()) for m in (tdx, ORACLE))
    assert_same_values(ours, theirs)


# Images

IMAGES: dict[str, Tensor] = {
    "bytes": torch.randint(256, (11, 13, 3), dtype=torch.uint8),
    "batch": torch.randint(256, (2, 3, 11, 13, 3), dtype=torch.uint8),
    "floats": torch.rand(11, 13, 3),
    "ints": torch.randint(256, (11, 13, 3)),
    "gray": torch.randint(256, (11, 13, 1), dtype=torch.uint8),
}
TO_TENSOR: dict[str, dict[str, Any]] = {
    "default": {},
    "from_int": {"from_int": True},
    "not_from_int": {"from_int": False},
    "unsqueeze": {"unsqueeze": True},
    "double": {"dtype": torch.float64},
    "half": {"dtype": torch.float16},
    "tolerant": {"shape_tolerant": True},
    "keys": {"in_keys": ["pixels"], "out_keys": [("images", "first")]},
}
RESIZE: dict[str, dict[str, Any]] = {
    "square": {"w": 5},
    "oblong": {"w": 4, "h": 9},
    "larger": {"w": 20, "h": 31},
    "nearest": {"w": 4, "h": 9, "interpolation": "nearest"},
    "bicubic": {"w": 4, "h": 9, "interpolation": "bicubic"},
    "bicubic-larger": {"w": 20, "h": 31, "interpolation": "bicubic"},
    "keys": {"w": 6, "in_keys": ["pixels"], "out_keys": [("images", "small")]},
}


def image_specs(m: Any, image: Tensor) -> Any:
    """A spec for images of that shape, dtype and range."""
    high = 1.0 if image.is_floating_point() else 255
    spec = m.Bounded(0, high, shape=image.shape, dtype=image.dtype)
    return m.Composite(pixels=spec, other=m.Unbounded((2,)))


def assert_same_images(
    name: str, kwargs: dict[str, Any], image: Tensor, rtol: float, atol: float | None = None
) -> None:
    atol = rtol if atol is None else atol
    ours, theirs = (getattr(m, name)(**kwargs) for m in (tdx, ORACLE))
    data = TensorDict(pixels=image)
    assert_same_values(ours(data.clone()), theirs(data.clone()), rtol=rtol, atol=atol)
    mine, wanted = (
        leaves(transform.transform_observation_spec(image_specs(m, image)))
        for transform, m in ((ours, tdx), (theirs, ORACLE))
    )
    assert mine.keys() == wanted.keys()
    for key, spec in wanted.items():
        assert (mine[key].shape, mine[key].dtype) == (spec.shape, spec.dtype)
        if isinstance(mine[key], tdx.Bounded):
            torch.testing.assert_close(mine[key].low, spec.space.low, rtol=rtol, atol=atol)
            torch.testing.assert_close(mine[key].high, spec.space.high, rtol=rtol, atol=atol)


@pytest.mark.parametrize("image", IMAGES.values(), ids=IMAGES)
@pytest.mark.parametrize("kwargs", TO_TENSOR.values(), ids=TO_TENSOR)
def test_to_tensor_image(kwargs: dict[str, Any], image: Tensor) -> None:
    # The oracle divides by 255, and in float32 also where float64 is asked for; tdx multiplies.
    rtol = 1e-3 if kwargs.get("dtype") is torch.float16 else 1e-6
    assert_same_images("ToTensorImage", kwargs, image, rtol)


@pytest.mark.parametrize("image", [IMAGES[name] for name in ("bytes", "batch", "floats")])
@pytest.mark.parametrize("kwargs", RESIZE.values(), ids=RESIZE)
def test_resize(kwargs: dict[str, Any], image: Tensor) -> None:
    # The oracle resizes bytes by way of floats. Torchvision's kernel for them rounds the weights,
    # and rounds again between rows and columns, which shows where cubic weights overshoot.
    differs = {"bilinear": 1.0, "bicubic": 24.0, "nearest": 0.0}
    atol = differs[kwargs.get("interpolation", "bilinear")] if image.dtype is torch.uint8 else 0.0
    assert_same_images("Resize", kwargs, image.movedim(-1, -3).contiguous(), 0.0, atol)


@pytest.mark.parametrize("workers", [None, 2], ids=["single", "serial"])
def test_pixels_of_an_env(workers: int | None) -> None:
    def stages(m: Any) -> list[Any]:
        return [m.ToTensorImage(), m.Resize(20, 30), m.CatFrames(2, dim=-3, in_keys=["pixels"])]

    ours, theirs = (
        chained(m, "CartPole-v1", stages, workers, from_pixels=True, pixels_only=True)
        for m in (tdx, ORACLE)
    )
    mine, wanted = (leaves(env.observation_spec) for env in (ours, theirs))
    assert {key: (spec.shape, spec.dtype) for key, spec in mine.items()} == {
        key: (spec.shape, spec.dtype) for key, spec in wanted.items()
    }
    # As above: a product instead of a quotient.
    assert_same_values(fixed_rollout(ours, 4), fixed_rollout(theirs, 4), rtol=1e-6, atol=1e-6)


# The way back, and statistics


@pytest.mark.parametrize("standard_normal", [True, False])
def test_stored_actions(standard_normal: bool) -> None:
    loc, scale = torch.tensor([0.2, -3.0]), torch.tensor([1.5, 0.3])
    data = TensorDict(action=torch.rand(7, 2) * 4 - 2)
    ours, theirs = (
        m.ActionScaling(loc=loc, scale=scale, standard_normal=standard_normal)
        for m in (tdx, ORACLE)
    )
    assert_same_values(ours(data.clone()), theirs(data.clone()))
    assert_same_values(ours.inv(data), theirs.inv(data))


@pytest.mark.parametrize("copy", [False, True])
def test_stored_entries_are_renamed(copy: bool) -> None:
    data = TensorDict(a=torch.rand(3), b=TensorDict(c=torch.rand(1)), x=torch.rand(2))
    ours, theirs = (
        m.RenameTransform(["a", ("b", "c")], [("d", "e"), "f"], ["y"], ["x"], create_copy=copy)
        for m in (tdx, ORACLE)
    )
    assert_same_values(ours(data.clone()), theirs(data.clone()))
    assert_same_values(ours.inv(data), theirs.inv(data))


def test_stored_frames_are_stacked() -> None:
    torch.manual_seed(0)
    rollout = tdx.GymEnv("CartPole-v1").rollout(60, break_when_any_done=False)
    ours, theirs = (
        m.CatFrames(
            4,
            dim=-1,
            in_keys=["observation", ("next", "observation")],
            out_keys=["s", ("next", "s")],
        )
        for m in (tdx, ORACLE)
    )
    assert_same_values(ours(rollout.clone()), theirs(rollout.clone()))


@pytest.mark.parametrize("standard_normal", [True, False])
def test_measured_statistics(standard_normal: bool) -> None:
    norms = []
    for m in (tdx, ORACLE):
        norm = m.ObservationNorm(in_keys=["observation"], standard_normal=standard_normal)
        env = m.TransformedEnv(m.GymWrapper(Doubles()), m.Compose(norm))
        env.base_env.set_seed(3)
        if m is tdx:
            env.base_env.reset()
        norm.init_stats(100)
        norms.append(norm)
    ours, theirs = norms
    torch.testing.assert_close(ours.loc, theirs.loc)
    torch.testing.assert_close(ours.scale, theirs.scale)

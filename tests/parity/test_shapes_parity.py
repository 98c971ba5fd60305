"""Image and shape transforms, frame skips and differences against the oracle's."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tensordict import TensorDict
from torch import Tensor

import tdx
from tests.parity.twins import (
    ORACLE,
    Stages,
    assert_same_specs,
    assert_same_values,
    chained,
    fixed_rollout,
    leaves,
)

pytestmark = pytest.mark.filterwarnings("ignore")

# Chains around envs

VECTORS: dict[str, Stages] = {
    "unsqueeze": lambda m: [m.UnsqueezeTransform(-1, in_keys=["observation"])],
    "unsqueeze-key": lambda m: [
        m.UnsqueezeTransform(-2, in_keys=["observation"], out_keys=[("rows", "first")])
    ],
    "unsqueeze-positive": lambda m: [
        m.UnsqueezeTransform(0, in_keys=["observation"], allow_positive_dim=True)
    ],
    "squeeze": lambda m: [
        m.UnsqueezeTransform(-1, in_keys=["observation"]),
        m.SqueezeTransform(-1, in_keys=["observation"], out_keys=["back"]),
    ],
    "flatten": lambda m: [
        m.UnsqueezeTransform(-1, in_keys=["observation"]),
        m.CatFrames(2, dim=-1, in_keys=["observation"]),
        m.FlattenObservation(-2, -1, in_keys=["observation"]),
    ],
    "flatten-positive": lambda m: [
        m.UnsqueezeTransform(-1, in_keys=["observation"]),
        m.FlattenObservation(0, 1, in_keys=["observation"], allow_positive_dim=True),
    ],
    "permute": lambda m: [
        m.UnsqueezeTransform(-1, in_keys=["observation"]),
        m.CatFrames(2, dim=-1, in_keys=["observation"]),
        m.PermuteTransform((-1, -2), in_keys=["observation"], out_keys=["turned"]),
    ],
}
ACTIONS: dict[str, Stages] = {
    "squeeze-in": lambda m: [m.SqueezeTransform(-1, in_keys_inv=["action"])],
    "unsqueeze-in": lambda m: [m.UnsqueezeTransform(-1, in_keys_inv=["action"])],
    "unsqueeze-squeeze-in": lambda m: [
        m.UnsqueezeTransform(-1, in_keys_inv=["action"]),
        m.SqueezeTransform(-1, in_keys_inv=["action"]),
    ],
    "unsqueeze-permute-in": lambda m: [
        m.UnsqueezeTransform(-2, in_keys_inv=["action"]),
        m.PermuteTransform((-1, -2), in_keys_inv=["action"]),
    ],
}


@pytest.mark.parametrize("workers", [None, 2], ids=["single", "serial"])
@pytest.mark.parametrize("stages", VECTORS.values(), ids=VECTORS)
def test_shapes_of_observations(stages: Stages, workers: int | None) -> None:
    ours, theirs = (chained(m, "CartPole-v1", stages, workers) for m in (tdx, ORACLE))
    assert_same_specs(ours, theirs)
    assert_same_values(fixed_rollout(ours, 30), fixed_rollout(theirs, 30))


@pytest.mark.parametrize("workers", [None, 2], ids=["single", "serial"])
@pytest.mark.parametrize("stages", ACTIONS.values(), ids=ACTIONS)
def test_shapes_of_actions(stages: Stages, workers: int | None) -> None:
    ours, theirs = (chained(m, "Pendulum-v1", stages, workers) for m in (tdx, ORACLE))
    assert_same_specs(ours, theirs)
    assert_same_values(fixed_rollout(ours, 10), fixed_rollout(theirs, 10))


@pytest.mark.parametrize("workers", [None, 2], ids=["single", "serial"])
@pytest.mark.parametrize(
    "stages",
    [
        lambda m: [m.FrameSkipTransform(1)],
        lambda m: [m.FrameSkipTransform(4)],
        lambda m: [m.FrameSkipTransform(3), m.StepCounter(5), m.RewardSum()],
        lambda m: [m.RewardScaling(0.5, 0.1), m.FrameSkipTransform(3)],
        lambda m: [m.ObservationNorm(0.1, 2.0, ["observation"]), m.FrameSkipTransform(2)],
    ],
    ids=["1", "4", "first", "after-reward", "after-observation"],
)
def test_frame_skip_without_ends(stages: Stages, workers: int | None) -> None:
    """Without a done flag: the oracle keeps stepping an env that is done."""
    ours, theirs = (chained(m, "Pendulum-v1", stages, workers) for m in (tdx, ORACLE))
    assert_same_specs(ours, theirs)
    assert_same_values(fixed_rollout(ours, 12), fixed_rollout(theirs, 12))


# Images

IMAGES: dict[str, Tensor] = {
    "bytes": torch.randint(256, (3, 11, 13), dtype=torch.uint8),
    "batch": torch.randint(256, (2, 4, 3, 11, 13), dtype=torch.uint8),
    "floats": torch.rand(3, 11, 13),
    "many-floats": torch.rand(2, 1, 2, 3, 11, 13),
    "doubles": torch.rand(3, 11, 13).double(),
}
IMAGE_STAGES: dict[str, tuple[str, dict[str, Any]]] = {
    "gray": ("GrayScale", {}),
    "gray-key": ("GrayScale", {"in_keys": ["pixels"], "out_keys": [("images", "gray")]}),
    "crop": ("CenterCrop", {"w": 4}),
    "crop-oblong": ("CenterCrop", {"w": 11, "h": 6}),
    "crop-key": ("CenterCrop", {"w": 5, "in_keys": ["pixels"], "out_keys": ["middle"]}),
    "flatten": ("FlattenObservation", {"first_dim": -3, "last_dim": -1}),
    "permute": ("PermuteTransform", {"dims": (-2, -1, -3), "in_keys": ["pixels"]}),
}


@pytest.mark.parametrize("image", IMAGES.values(), ids=IMAGES)
@pytest.mark.parametrize(("name", "kwargs"), IMAGE_STAGES.values(), ids=IMAGE_STAGES)
def test_images(name: str, kwargs: dict[str, Any], image: Tensor) -> None:
    ours, theirs = (getattr(m, name)(**kwargs) for m in (tdx, ORACLE))
    data = TensorDict(pixels=image)
    # The oracle sums the channels of floats in another order of rounding.
    near = 1e-6 if name == "GrayScale" else 0.0
    assert_same_values(ours(data.clone()), theirs(data.clone()), rtol=near, atol=near)
    high = 1.0 if image.is_floating_point() else 255
    mine, wanted = (
        leaves(
            transform.transform_observation_spec(
                m.Composite(pixels=m.Bounded(0, high, shape=image.shape, dtype=image.dtype))
            )
        )
        for transform, m in ((ours, tdx), (theirs, ORACLE))
    )
    assert mine.keys() == wanted.keys()
    for key, spec in wanted.items():
        assert (mine[key].shape, mine[key].dtype) == (spec.shape, spec.dtype)
        for end in ("low", "high"):
            torch.testing.assert_close(
                getattr(mine[key], end), getattr(spec.space, end), rtol=near, atol=near
            )


# Differences


@pytest.mark.parametrize(
    "kwargs",
    [{}, {"delta_dtype": torch.float32}, {"restore_dtype": torch.float64}, {"drop_delta": False}],
    ids=["default", "float32", "float64", "kept"],
)
def test_differences_in_stored_data(kwargs: dict[str, Any]) -> None:
    """The oracle drops the next observation in the env, tdx when a buffer is written."""
    ours, theirs = (
        m.TransformedEnv(m.GymEnv("Pendulum-v1"), m.NextObservationDelta(["observation"], **kwargs))
        for m in (tdx, ORACLE)
    )
    mine, wanted = fixed_rollout(ours, 12), fixed_rollout(theirs, 12)
    transform = tdx.NextObservationDelta(["observation"], **kwargs)
    stored = transform.inv(mine)
    assert_same_values(stored.exclude("delta"), wanted)
    twin = ORACLE.NextObservationDelta(["observation"], **kwargs)
    assert_same_values(transform(stored).exclude("delta"), twin(wanted))

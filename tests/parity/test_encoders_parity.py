"""R3MTransform with copied weights against the oracle's: keys, specs and vectors."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from tensordict import TensorDict

import tdx
from tests.parity.twins import ORACLE, assert_same_specs, assert_same_values, fixed_rollout
from tests.programs import exhaustive, sampled

pytestmark = pytest.mark.filterwarnings("ignore")


def pair(arguments: dict[str, Any]) -> tuple[Any, Any]:
    """The two transforms, with the same weights."""
    ours, theirs = (m.R3MTransform("resnet18", size=40, **arguments) for m in (tdx, ORACLE))
    ours.transform_observation_spec(
        tdx.Composite(
            {key: tdx.Bounded(0, 255, (9, 9, 3), dtype=torch.uint8) for key in ours.in_keys}
        )
    )
    (network,) = (each for name, each in theirs.named_modules() if name.endswith(".convnet"))
    network.load_state_dict(ours.convnet.state_dict())
    return ours, theirs


@pytest.mark.parametrize(
    "arguments",
    [
        {"in_keys": ["pixels"]},
        {"in_keys": ["pixels"], "out_keys": [("seen", "vec")], "tensor_pixels_keys": ["frames"]},
        {"in_keys": ["other", "pixels"]},
        {"in_keys": ["other", "pixels"], "stack_images": False},
        {"in_keys": ["other", "pixels"], "stack_images": False, "out_keys": ["a", "b"]},
        {"in_keys": ["other", "pixels"], "tensor_pixels_keys": ["x", "y"]},
    ],
    ids=["one", "named", "two", "apart", "apart-named", "two-kept"],
)
@sampled(3)
def test_stored_images(arguments: dict[str, Any]) -> None:
    ours, theirs = pair(arguments)
    # Images of several keys are encoded together, whatever the dimensions before those of an image.
    lead = (2, 2) if len(ours.in_keys) > 1 else ()
    frames = {
        key: torch.randint(0, 256, (*lead, 50, 60, 3), dtype=torch.uint8) for key in ours.in_keys
    }
    found, wanted = (each(TensorDict(dict(frames), batch_size=lead)) for each in (ours, theirs))
    assert_same_values(found, wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("workers", [None, 2], ids=["single", "serial"])
@pytest.mark.parametrize("keys", [None, ["frames"]], ids=["replaced", "kept"])
@exhaustive
def test_specs_and_rollouts(workers: int | None, keys: list[str] | None) -> None:
    ours, theirs = pair({"in_keys": ["pixels"], "tensor_pixels_keys": keys})
    envs = []
    for m, transform in ((tdx, ours), (ORACLE, theirs)):
        make = partial(m.GymEnv, "CartPole-v1", from_pixels=True, pixels_only=True)
        base = make() if workers is None else m.SerialEnv(workers, make)
        envs.append(m.TransformedEnv(base, transform))
    if keys is None:
        assert_same_specs(*envs)
    assert_same_values(fixed_rollout(envs[0], 3), fixed_rollout(envs[1], 3), rtol=1e-3, atol=1e-3)

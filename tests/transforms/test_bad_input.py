"""What users get wrong most: each is one clear line, found from the specs where that can be."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tensordict import TensorDict

from tdx import (
    ActionDiscretizer,
    ActionMask,
    CatFrames,
    CenterCrop,
    Compose,
    Composite,
    ExcludeTransform,
    GrayScale,
    InitTracker,
    ObservationNorm,
    RenameTransform,
    Resize,
    RewardScaling,
    SelectTransform,
    TensorDictPrimer,
    TransformedEnv,
    Unbounded,
    UnsqueezeTransform,
)
from tdx.errors import TdxError
from tdx.transforms import Transform
from tests.transforms.mocks import RowsEnv
from tests.transforms.mocks_of_actions import MaskedRowsEnv

NAN = float("nan")
WRONG_CHAINS: dict[str, tuple[Callable[[], list[Transform]], str]] = {
    "channels last, gray": (lambda: [GrayScale(in_keys=["pixels"])], r"put ToTensorImage\(\)"),
    "channels last, resize": (lambda: [Resize(4)], r"put ToTensorImage\(\) before it"),
    "channels last, crop": (lambda: [CenterCrop(3)], r"put ToTensorImage\(\) before it"),
    "a crop too wide": (
        lambda: [CenterCrop(30, 2, in_keys=["image"])],
        "crop of 30 × 2 is larger than the image.*w may be up to",
    ),
    "a crop too high": (lambda: [CenterCrop(3, 30, in_keys=["image"])], "h up to 7"),
    "too many intervals": (
        lambda: [ActionDiscretizer([2, 3, 4])],
        "num_intervals has 3 numbers, the action 'action' has 2 elements",
    ),
    "a taken key": (
        lambda: [RenameTransform(["observation"], ["precise"])],
        "which already exists",
    ),
    "two renames to one key": (
        lambda: [
            RenameTransform(["observation"], ["seen"]),
            RenameTransform(["precise"], ["seen"]),
        ],
        "the key 'seen', which already exists",
    ),
    "no done flag selected": (
        lambda: [SelectTransform("observation", keep_dones=False)],
        "episodes would never end",
    ),
    "all done flags excluded": (
        lambda: [ExcludeTransform("done", "terminated", "truncated")],
        "episodes would never end",
    ),
    "stats of another size": (
        lambda: [ObservationNorm(torch.zeros(4), torch.ones(4), in_keys=["observation"])],
        r"loc has shape \(4,\), which does not fit the entry's \(3,\)",
    ),
}


@pytest.mark.parametrize(("make", "said"), WRONG_CHAINS.values(), ids=WRONG_CHAINS)
def test_a_chain_that_does_not_fit(make: Callable[[], list[Transform]], said: str) -> None:
    stages = make()
    env = TransformedEnv(RowsEnv(), Compose(InitTracker(), *stages))
    with pytest.raises(TdxError, match=said) as caught:
        _ = env.output_spec
    assert "\n" not in str(caught.value)
    assert caught.value.where.stage == len(stages)
    assert caught.value.hint


def test_rewards_are_not_dropped_by_mistake() -> None:
    assert "reward" in TransformedEnv(RowsEnv(), SelectTransform("observation")).rollout(1)["next"]


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: RenameTransform(["a", "b"], ["b", "a"]), "swap keys by three renames"),
        (lambda: RenameTransform(["a", "b"], ["c", "c"]), "out_keys repeat"),
        (lambda: ObservationNorm(0.0, 0.0), "scale must not be zero"),
        (lambda: ObservationNorm(0.0, torch.tensor([1.0, 0.0])), "scale must not be zero"),
        (lambda: RewardScaling(0.0, 0.0), "scale must not be zero"),
        (lambda: ObservationNorm(0.0, NAN), "scale must be finite, got nan"),
        (lambda: ObservationNorm(NAN, 1.0), "loc must be finite, got nan"),
        (lambda: RewardScaling(torch.zeros(3), torch.ones(2)), "which do not broadcast"),
        (lambda: ActionDiscretizer(0), "num_intervals must be integers of at least 1"),
    ],
)
def test_arguments(make: Callable[[], Any], said: str) -> None:
    with pytest.raises(TdxError, match=said):
        make()


def test_a_scale_of_zero_counts_as_the_smallest_where_it_divides() -> None:
    norm = ObservationNorm(0.0, 0.0, in_keys=["o"], standard_normal=True, eps=0.5)
    assert norm(TensorDict(o=torch.ones(1)))["o"].item() == 2


@pytest.mark.parametrize(("shape", "data"), [((4,), "neither a done flag"), ((), "dim of time")])
def test_frames_without_a_known_start_of_their_episode(shape: tuple[int, ...], data: str) -> None:
    stored = TensorDict(o=torch.zeros(4, 3), batch_size=shape)
    with pytest.raises(TdxError, match=data):
        CatFrames(2, -1, in_keys=["o"])(stored)


def test_a_mask_of_the_wrong_shape() -> None:
    chain = Compose(UnsqueezeTransform(-1, in_keys=["action_mask"]), ActionMask())
    with pytest.raises(TdxError, match=r"mask has shape \(4, 1\), the action 'action' needs \(4"):
        _ = TransformedEnv(MaskedRowsEnv(), chain).input_spec


@pytest.mark.parametrize(
    ("primer", "said"),
    [
        (
            lambda: TensorDictPrimer(Composite(h=Unbounded((3, 2)), shape=(3,))),
            r"batch size \(3,\) cannot be expanded to the env's, \(4,\)",
        ),
        (
            lambda: TensorDictPrimer(h=Unbounded((2,)), expand_specs=False),
            r"shape \(2,\) does not start with the env's batch size \(4,\)",
        ),
    ],
)
def test_a_primer_that_does_not_fit_the_batch(
    primer: Callable[[], TensorDictPrimer], said: str
) -> None:
    with pytest.raises(TdxError, match=said):
        _ = TransformedEnv(RowsEnv((4,)), primer()).output_spec

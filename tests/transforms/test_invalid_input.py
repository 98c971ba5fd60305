"""Common mistakes: each is one clear line, found from the specs if possible."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest
import torch
from tensordict import TensorDict

from tdx import (
    ActionDiscretizer,
    ActionMask,
    ActionScaling,
    CatFrames,
    CenterCrop,
    Compose,
    Composite,
    ExcludeTransform,
    GrayScale,
    GymEnv,
    InitTracker,
    ObservationNorm,
    RenameTransform,
    Resize,
    RewardScaling,
    SelectTransform,
    TensorDictPrimer,
    ToTensorImage,
    TransformedEnv,
    Unbounded,
    UnsqueezeTransform,
)
from tdx.foundation.errors import (
    ArgumentError,
    ChainError,
    KeyNotFoundError,
    TdxError,
    UnknownNameError,
)
from tdx.transforms import Transform
from tests.transforms.envs import MaskedRowsEnv, RowsEnv

NAN = float("nan")


WRONG_CHAINS: dict[str, tuple[Callable[[], list[Transform]], str]] = {
    "channels last, gray": (lambda: [GrayScale(in_keys=["pixels"])], r"put ToTensorImage\(\)"),
    "channels last, resize": (lambda: [Resize(4)], r"put ToTensorImage\(\) before it"),
    "channels last, crop": (lambda: [CenterCrop(3)], r"put ToTensorImage\(\) before it"),
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
def test_incompatible_chain(make: Callable[[], list[Transform]], said: str) -> None:
    stages = make()
    env = TransformedEnv(RowsEnv(), Compose(InitTracker(), *stages))
    with pytest.raises(TdxError, match=said) as caught:
        _ = env.output_spec
    assert "\n" not in str(caught.value)
    assert caught.value.where.stage == len(stages)
    assert caught.value.hint


def test_accidentally_dropped_rewards_are_reported() -> None:
    assert "reward" in TransformedEnv(RowsEnv(), SelectTransform("observation")).rollout(1)["next"]


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: RenameTransform(["a", "b"], ["b", "a"]), "to swap keys, rename three times"),
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
def test_more_invalid_arguments(make: Callable[[], Any], said: str) -> None:
    with pytest.raises(TdxError, match=said):
        make()


def test_scale_of_zero_is_clamped_in_divisions() -> None:
    norm = ObservationNorm(0.0, 0.0, in_keys=["o"], standard_normal=True, eps=0.5)
    assert norm(TensorDict(o=torch.ones(1)))["o"].item() == 2


@pytest.mark.parametrize(("shape", "data"), [((4,), "neither a done flag"), ((), "time dim")])
def test_frames_without_an_episode_start_are_refused(shape: tuple[int, ...], data: str) -> None:
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
def test_primer_incompatible_with_the_batch(
    primer: Callable[[], TensorDictPrimer], said: str
) -> None:
    with pytest.raises(TdxError, match=said):
        _ = TransformedEnv(RowsEnv((4,)), primer()).output_spec


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: Resize(0), ArgumentError, "w must be an integer of at least 1, got 0"),
        (lambda: Resize(cast(Any, 2.5)), ArgumentError, "w must be an integer"),
        (lambda: Resize(2, -1), ArgumentError, "h must be an integer"),
        (
            lambda: Resize(2, interpolation=cast(Any, "bilinar")),
            UnknownNameError,
            "did you mean bilinear",
        ),
        (lambda: ToTensorImage(dtype=torch.uint8), ArgumentError, "from_int=False"),
        (lambda: ActionScaling(loc=1.0), ArgumentError, "only one of loc and scale"),
        (lambda: ActionScaling(["a", "b"]), ArgumentError, "one ActionScaling for each"),
        (lambda: ActionScaling([]), ArgumentError, "loc and scale"),
        (lambda: ActionScaling(loc=0.0, scale=0.0), ArgumentError, "must not be zero"),
        (lambda: ActionScaling(loc=0.0, scale=float("inf")), ArgumentError, "must be finite"),
    ],
)
def test_invalid_arguments(make: Callable[[], Any], error: type[TdxError], message: str) -> None:
    with pytest.raises(error, match=message):
        make()


@pytest.mark.parametrize(
    ("transform", "error", "message"),
    [
        (Resize(4), ArgumentError, "has its channels last .put ToTensorImage.. before it"),
        (Resize(4, in_keys=["observation"]), ArgumentError, "got shape .3,."),
        (Resize(4, in_keys=["pixel"]), KeyNotFoundError, "existing keys: pixels"),
        (ToTensorImage(in_keys=["observation"]), ArgumentError, "got shape .3,."),
        (ActionScaling(["act"]), KeyNotFoundError, "existing keys: action"),
    ],
)
def test_incompatible_env(transform: Transform, error: type[TdxError], message: str) -> None:
    env = TransformedEnv(RowsEnv(), Compose(InitTracker(), transform))
    with pytest.raises(error, match=message) as caught:
        env.output_spec  # noqa: B018
    assert caught.value.where.stage == 1
    assert caught.value.where.transform == type(transform).__name__


def test_an_action_without_a_range() -> None:
    env = TransformedEnv(GymEnv("CartPole-v1"), ActionScaling())
    with pytest.raises(ChainError, match="OneHot without a finite, non-empty range"):
        env.action_spec  # noqa: B018


def test_an_image_without_a_spec() -> None:
    with pytest.raises(ArgumentError, match="channels last"):
        Resize(4)(TensorDict(pixels=torch.zeros(9, 8, 3)))

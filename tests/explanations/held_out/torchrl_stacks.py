"""Faults in chains of TorchRL."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torchrl import envs as rl

from tests.contracts.envs import MEAN, VAR, Arm, Factor, rl_chain
from tests.explanations.held_out.model import Case, fault
from tests.explanations.mutations.envs import PictureEnv

O = ["observation"]  # noqa: E741
P = ["pixels"]
EXTRA = "missing stage"
FEATURES = ("feature scale", "value", "argument", "width", "scale")


def frames(*stages: Any) -> Any:
    return rl.TransformedEnv(rl.GymWrapper(PictureEnv()), rl.Compose(*stages))


def arm(*stages: Any) -> Any:
    return rl.TransformedEnv(rl.GymWrapper(Arm()), rl.Compose(*stages))


def norm(loc: Any = MEAN, scale: Any = None, **kwargs: Any) -> Any:
    scale = torch.tensor(VAR).sqrt() if scale is None else scale
    kwargs.setdefault("standard_normal", True)
    return rl.ObservationNorm(torch.as_tensor(loc), torch.as_tensor(scale), O, **kwargs)


class Mapped(rl.Transform):  # type: ignore[misc]
    """Applies a function of a user."""

    def __init__(self, function: Callable[[Any], Any], key: str = "observation") -> None:
        super().__init__(in_keys=[key], out_keys=[key])
        self.hidden = [function]

    def _apply_transform(self, observation: torch.Tensor) -> torch.Tensor:
        return self.hidden[0](observation)

    def _reset(self, tensordict: Any, tensordict_reset: Any) -> Any:
        return self._call(tensordict_reset)


class StepsOnly(Factor):
    """Forgets the observation of a reset."""

    def __init__(self, factor: float, resets: bool) -> None:
        super().__init__(factor)
        self.resets = [resets]

    def _reset(self, tensordict: Any, tensordict_reset: Any) -> Any:
        return self._call(tensordict_reset) if self.resets[0] else tensordict_reset


def image() -> Any:
    return rl.ToTensorImage(in_keys=P)


def resize(*size: int, kernel: str = "bilinear") -> Any:
    return rl.Resize(*size, interpolation=kernel, in_keys=P)


def chains(one: list[Callable[[], Any]], other: list[Callable[[], Any]], *faults: Any) -> Case:
    """Return a case of chains around the pendulum."""
    return Case(
        lambda: rl_chain(*(make() for make in one)),
        lambda: rl_chain(*(make() for make in other)),
        faults,
    )


def pictures(one: list[Callable[[], Any]], other: list[Callable[[], Any]], *faults: Any) -> Case:
    """Return a case of chains around the pictures."""
    return Case(
        lambda: frames(*(make() for make in one)),
        lambda: frames(*(make() for make in other)),
        faults,
    )


CASES: dict[str, Case] = {
    "TorchRL: mean of one feature": chains(
        [norm], [lambda: norm([0.3, -0.2, 0.0])], fault("ObservationNorm", *FEATURES)
    ),
    "TorchRL: standard_normal": chains(
        [norm],
        [lambda: norm(standard_normal=False)],
        fault("ObservationNorm", "argument", "value", "state missing", says="standard_normal"),
    ),
    "TorchRL: frames along another dim": chains(
        [lambda: rl.CatFrames(3, -1, O)],
        [lambda: rl.CatFrames(2, -1, O)],
        fault("CatFrames", "argument", says="N is 2 instead of 3"),
    ),
    "TorchRL: CatFrames before the statistics": chains(
        [lambda: rl.ClipTransform(O, low=-0.5, high=0.5), lambda: rl.CatFrames(3, -1, O)],
        [lambda: rl.CatFrames(3, -1, O, padding="constant")],
        fault("ClipTransform", EXTRA),
        fault("CatFrames", "argument", says="padding"),
    ),
    "TorchRL: image not scaled": pictures(
        [image, lambda: resize(24, 24)],
        [lambda: rl.ToTensorImage(in_keys=P, from_int=False), lambda: resize(24, 24)],
        fault("ToTensorImage", "argument", "range", "scale"),
    ),
    "TorchRL: no gray": pictures(
        [image, lambda: rl.GrayScale(in_keys=P)], [image], fault("GrayScale", EXTRA)
    ),
    "TorchRL: nearest": pictures(
        [image, lambda: resize(24, 24)],
        [image, lambda: resize(24, 24, kernel="nearest")],
        fault("Resize", "argument", "resampling", says="nearest"),
    ),
    "TorchRL: CenterCrop": pictures(
        [image, lambda: rl.CenterCrop(32, in_keys=P)],
        [image, lambda: rl.CenterCrop(30, in_keys=P)],
        fault("CenterCrop", "argument", says="30"),
    ),
    "TorchRL: Crop at the corner instead of CenterCrop": pictures(
        [image, lambda: rl.CenterCrop(32, in_keys=P)],
        [image, lambda: rl.Crop(32, 32, in_keys=P)],
        fault("Crop", "crop", numbers={"top": 0, "left": 0}),
    ),
    "TorchRL: resized before the crop": pictures(
        [image, lambda: rl.CenterCrop(32, in_keys=P), lambda: resize(20, 20)],
        [image, lambda: resize(20, 20)],
        fault("CenterCrop", EXTRA),
    ),
    "TorchRL: sign of an angle in a custom transform": chains(
        [lambda: Mapped(lambda x: x)],
        [lambda: Mapped(lambda x: x * torch.tensor([1.0, -1.0, 1.0]))],
        fault("Mapped", "feature scale", numbers={"factor": [1, -1, 1]}),
    ),
    "TorchRL: log in a custom transform": chains(
        [lambda: Mapped(lambda x: x)],
        [lambda: Mapped(lambda x: x.sign() * x.abs().log1p())],
        fault("Mapped", "function"),
    ),
    "TorchRL: reset forgotten": chains(
        [lambda: StepsOnly(0.25, True)],
        [lambda: StepsOnly(0.25, False)],
        fault("StepsOnly", "inactive", says="reset"),
    ),
    "TorchRL: order of CatTensors": Case(
        lambda: arm(rl.CatTensors(["position", "velocity"], "state", sort=False)),
        lambda: arm(rl.CatTensors(["velocity", "position"], "state", sort=False)),
        (fault("CatTensors", "permutation", "feature order", numbers={"order": [2, 3, 0, 1]}),),
    ),
    "TorchRL: renamed key": Case(
        lambda: arm(rl.RenameTransform(["position"], ["joints"])),
        lambda: arm(rl.RenameTransform(["velocity"], ["joints"])),
        (fault("RenameTransform", "argument", says="velocity"),),
    ),
    "TorchRL: not permuted": pictures(
        [lambda: rl.PermuteTransform((-1, -3, -2), in_keys=P)],
        [lambda: rl.PermuteTransform((-1, -2, -3), in_keys=P)],
        fault("PermuteTransform", "argument", "axis order"),
    ),
    "TorchRL: reward scale": chains(
        [lambda: rl.RewardScaling(0.0, 0.1)],
        [lambda: rl.RewardScaling(0.0, 0.01)],
        fault("RewardScaling", "argument", "value", "scale", says="scale"),
    ),
    "TorchRL: reward clipped": chains(
        [norm],
        [norm, lambda: rl.RewardClipping(-1.0, 0.0)],
        fault("RewardClipping", EXTRA),
    ),
    "TorchRL: cast to half": chains(
        [norm],
        [norm, lambda: Mapped(lambda x: x.half().float())],
        fault("Mapped", EXTRA, "rounding", numbers={"to": "float16"}),
    ),
    "TorchRL: max of frames": chains(
        [norm],
        [norm, lambda: rl.TimeMaxPool(in_keys=O, T=2)],
        fault("TimeMaxPool", EXTRA),
    ),
    "TorchRL: counter": chains([norm], [norm, rl.StepCounter]),
    "TorchRL: extra clip at 1 and other mean": chains(
        [norm, lambda: Mapped(lambda x: x)],
        [lambda: norm([0.3, 0.2, 1.5]), lambda: Mapped(lambda x: x.clamp(-1, 1))],
        fault("ObservationNorm", *FEATURES),
        fault("Mapped", "clip", numbers={"low": -1, "high": 1}),
    ),
}

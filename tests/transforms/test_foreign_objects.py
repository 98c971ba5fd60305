"""Transforms and wrappers of other libraries are refused instead of being called."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium
import pytest
from tensordict import TensorDictBase
from torch import nn

from tdx import Compose, GymEnv, LazyTensorStorage, ReplayBuffer, RewardSum, TransformedEnv
from tdx.foundation.errors import ArgumentError, TdxError
from tdx.pipeline import Pipeline, build_checked_env


def torchrl_like(base: type = nn.Module) -> Any:
    """Return an instance of a class that looks like one of TorchRL."""

    def forward(self: Any, tensordict: TensorDictBase) -> TensorDictBase:
        return tensordict

    library = type("VecNorm", (base,), {"__module__": "torchrl.envs.x", "forward": forward})
    return library()


def sb3_like() -> Any:
    kind = type("VecNormalize", (), {"__module__": "stable_baselines3.common.vec_env.x"})
    return type("MyNormalize", (kind,), {"__call__": lambda self, td: td})()


OBJECTS: dict[str, Callable[[], Any]] = {
    "torchrl": torchrl_like,
    "torchrl class": lambda: type(torchrl_like()),
    "torchrl subclass": lambda: type("Mine", (type(torchrl_like()),), {})(),
    "torchrl method": lambda: torchrl_like().forward,
    "torchrl partial": lambda: partial(torchrl_like()),
    "gymnasium env": lambda: gymnasium.make("CartPole-v1"),
    "gymnasium wrapper class": lambda: gymnasium.wrappers.TransformReward,
    "sb3 subclass": sb3_like,
}

PLACES: dict[str, Callable[[Any], Any]] = {
    "Compose": Compose,
    "append": lambda each: Compose().append(each),
    "insert": lambda each: Compose(RewardSum()).insert(0, each),
    "TransformedEnv": lambda each: TransformedEnv(GymEnv("CartPole-v1"), each),
    "append_transform": lambda each: TransformedEnv(GymEnv("CartPole-v1")).append_transform(each),
    "insert_transform": lambda each: TransformedEnv(GymEnv("CartPole-v1")).insert_transform(
        0, each
    ),
    "transform": lambda each: setattr(TransformedEnv(GymEnv("CartPole-v1")), "transform", each),
    "ReplayBuffer": lambda each: ReplayBuffer(storage=LazyTensorStorage(9), transform=each),
    "buffer.append_transform": lambda each: ReplayBuffer(
        storage=LazyTensorStorage(9)
    ).append_transform(each),
}


@pytest.mark.parametrize("thing", OBJECTS.values(), ids=OBJECTS)
def test_foreign_objects_are_refused(thing: Callable[[], Any]) -> None:
    with pytest.raises(ArgumentError, match=r"belongs to (TorchRL|Gymnasium|Stable)") as caught:
        Compose(thing())
    assert caught.value.hint


@pytest.mark.parametrize("place", PLACES.values(), ids=PLACES)
def test_every_place_refuses_them(place: Callable[[Any], Any]) -> None:
    with pytest.raises(ArgumentError, match="VecNorm belongs to TorchRL"):
        place(torchrl_like())


@pytest.mark.parametrize("place", PLACES.values(), ids=PLACES)
def test_classes_are_refused(place: Callable[[Any], Any]) -> None:
    kinds: list[type] = [RewardSum, type("Mine", (), {"__call__": lambda self, td: td})]
    for kind in kinds:
        with pytest.raises(TdxError, match=f"{kind.__name__} is a class"):
            place(kind)


foreign_instance = torchrl_like()


def test_objects_that_a_pipeline_names_are_refused() -> None:
    pipeline = Pipeline.of("CartPole-v1", f"{__name__}:foreign_instance")
    with pytest.raises(ArgumentError, match=r"stage 0 .*VecNorm belongs to TorchRL"):
        build_checked_env(pipeline, allow_code=True)


def test_functions_and_modules_are_accepted() -> None:
    class Mine(nn.Module):
        def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
            return tensordict

    def plain(tensordict: TensorDictBase) -> TensorDictBase:
        return tensordict

    assert len(Compose(Mine(), plain, partial(plain), lambda td: td, Mine().forward)) == 5

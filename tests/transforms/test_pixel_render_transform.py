"""Images that the env renders."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from tensordict import TensorDict, TensorDictBase

from tdx import (
    GymEnv,
    NonTensor,
    PixelRenderTransform,
    SerialEnv,
    TransformedEnv,
    VideoRecorder,
    check_env_specs,
)
from tdx.foundation.errors import ArgumentError, EnvError
from tests.transforms.envs import CountedRowsEnv, RowsEnv

FRAME = partial(PixelRenderTransform, "frame")


def cartpole(**kwargs: Any) -> TransformedEnv:
    return TransformedEnv(
        GymEnv("CartPole-v1", render_mode="rgb_array"), PixelRenderTransform(**kwargs)
    )


@pytest.mark.parametrize("planned", [True, False])
def test_every_step_is_rendered(planned: bool) -> None:
    env = TransformedEnv(CountedRowsEnv((2,), True), FRAME(), planned=planned)
    rollout = env.rollout(3)
    assert rollout["frame"][..., 0, 0, 0].tolist() == [[0, 1, 2], [10, 11, 12]]
    assert rollout["next", "frame"][..., 0, 0, 0].tolist() == [[1, 2, 3], [11, 12, 13]]


def test_an_env_of_gymnasium() -> None:
    env = cartpole(preproc=halved)
    assert env.observation_spec["pixels"].shape == (200, 300, 3)
    assert env.observation_spec["pixels"].dtype is torch.uint8
    rollout = env.rollout(8, keep_left)
    images = torch.cat((rollout["pixels"], rollout["next", "pixels"][-1:]))
    assert len(images.flatten(1).unique(dim=0)) > 4
    check_env_specs(env)


def keep_left(tensordict: TensorDictBase) -> TensorDictBase:
    return tensordict.set("action", torch.tensor([1, 0]))


def halved(image: Any) -> Any:
    return np.asarray(image)[..., ::2, ::2, :]


@pytest.mark.parametrize("outside", [True, False])
def test_a_batch(outside: bool) -> None:
    def make() -> Any:
        return GymEnv("CartPole-v1", render_mode="rgb_array")

    env = (
        TransformedEnv(SerialEnv(2, make), PixelRenderTransform())
        if outside
        else SerialEnv(2, cartpole)
    )
    assert env.rollout(2)["next", "pixels"].shape == (2, 2, 400, 600, 3)


def test_one_image_for_a_batch() -> None:
    class Scene(RowsEnv):
        def render(self, size: int = 4) -> torch.Tensor:
            return torch.full((size, 5, 3), int(self.count.max()), dtype=torch.uint8)

    env = TransformedEnv(Scene((2,), True), FRAME(size=6))
    assert isinstance(env.observation_spec["frame"], NonTensor)
    step = env.step(env.rand_action(env.reset()))
    assert step["next", "frame"].shape == (6, 5, 3)
    with pytest.raises(EnvError, match="does not start with the env's batch size"):
        TransformedEnv(Scene((2,)), FRAME(as_non_tensor=False)).output_spec  # noqa: B018


def test_the_tensordict_is_passed() -> None:
    class Observed(RowsEnv):
        def draw(self, tensordict: TensorDict) -> torch.Tensor:
            return tensordict["observation"].reshape(1, 1, 3)

    env = TransformedEnv(Observed(), FRAME(render_method="draw", pass_tensordict=True))
    rollout = env.rollout(2)
    assert torch.equal(rollout["frame"].flatten(1), rollout["observation"])


def test_rendering_can_be_disabled() -> None:
    env = TransformedEnv(CountedRowsEnv(), FRAME())
    assert "frame" in env.rollout(2).keys()
    env.transform.switch()
    assert not env.transform.enabled
    assert "frame" not in env.rollout(2).keys()
    env.transform.switch("on")
    assert "frame" in env.rollout(2).keys()
    check_env_specs(env)
    env.transform.switch(False)
    assert not env.transform.enabled
    with pytest.raises(ArgumentError, match="unknown mode 'no'"):
        env.transform.switch("no")


def test_video_of_rendered_images() -> None:
    env = TransformedEnv(CountedRowsEnv(endless=True), PixelRenderTransform(out_keys="frame"))
    env.append_transform(VideoRecorder(None, "run", in_keys=["frame"], skip=1))
    env.rollout(3)
    assert [int(frame.max()) for frame in env.transform[1].obs] == [0, 1, 2, 3]


def test_env_without_rendering_is_refused() -> None:
    with pytest.raises(ArgumentError, match="writes one image"):
        PixelRenderTransform(["a", "b"])
    preproc: Any = "half"
    with pytest.raises(ArgumentError, match="preproc must be a function"):
        PixelRenderTransform(preproc=preproc)
    with pytest.raises(EnvError, match="no method 'render'"):
        TransformedEnv(RowsEnv(), PixelRenderTransform()).output_spec  # noqa: B018

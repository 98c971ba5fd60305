"""Videos of an env."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tensordict import TensorDict
from torch import Tensor

from tdx import StepCounter, TransformedEnv, VideoFolder, VideoRecorder
from tdx.foundation.errors import ArgumentError
from tdx.specs import Composite
from tests.transforms.envs import RowsEnv, flag


class Videos:
    """Logger that keeps its videos."""

    def __init__(self) -> None:
        self.calls: list[dict[str, Any]] = []

    def log_video(self, name: str, video: Tensor, step: int | None = None, **kwargs: Any) -> None:
        self.calls.append({"name": name, "video": video, "step": step, **kwargs})


def test_every_image_of_an_episode() -> None:
    logger = Videos()
    env = TransformedEnv(RowsEnv(endless=True), VideoRecorder(logger, "run", skip=1, fps=9))
    env.append_transform(StepCounter())
    rollout = env.rollout(3)
    env.transform.dump(step=12)
    (call,) = logger.calls
    assert (call["name"], call["step"], call["fps"]) == ("run", 12, 9)
    wanted = torch.cat((rollout["pixels"], rollout["next", "pixels"][-1:])).movedim(-1, -3)
    assert torch.equal(call["video"], wanted.unsqueeze(0))
    env.transform.dump()
    assert len(logger.calls) == 1


def test_a_video_of_each_episode() -> None:
    logger = Videos()
    recorder = VideoRecorder(logger, "run", skip=1, dump_on_done=True)
    env = TransformedEnv(RowsEnv(), StepCounter(2)).append_transform(recorder)
    env.rollout(6, break_when_any_done=False)
    assert [call["video"].shape[1] for call in logger.calls] == [3, 3, 3]
    assert [call["step"] for call in logger.calls] == [0, 1, 2]


def test_a_video_of_each_episode_of_an_env_whose_agents_go_on() -> None:
    logger = Videos()
    base = RowsEnv()
    agents = Composite(done=flag(2, 1), shape=(2,))
    base.done_spec = Composite(done=flag(1), terminated=flag(1), truncated=flag(1), agents=agents)
    env = TransformedEnv(base, VideoRecorder(logger, "run", skip=1, dump_on_done=True))
    env.rollout(4, break_when_any_done=False)
    assert [call["video"].shape[1] for call in logger.calls] == [3, 3]


def test_clones_record_for_themselves() -> None:
    recorder = VideoRecorder(Videos(), "run")
    recorder(TensorDict(pixels=torch.zeros(5, 8, 8, 3)))
    copied = recorder.clone()
    copied(TensorDict(pixels=torch.zeros(2, 8, 8, 3)))
    assert (len(recorder.obs), len(copied.obs)) == (5, 2)
    assert copied.logger is recorder.logger


def test_a_folder_of_videos(tmp_path: Path) -> None:
    av = pytest.importorskip("av")
    recorder = VideoRecorder(VideoFolder(tmp_path / "videos", fps=12), "run")
    images = torch.zeros(5, 17, 16, 1, dtype=torch.uint8)
    images[3:] = 255
    recorder(TensorDict(pixels=images))
    recorder.dump(suffix="first")
    recorder(TensorDict(pixels=images[:1]))
    recorder.dump()
    assert sorted(path.name for path in (tmp_path / "videos").iterdir()) == [
        "run_1.mp4",
        "run_first_0.mp4",
    ]
    with av.open(str(tmp_path / "videos" / "run_first_0.mp4")) as container:
        frames = [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]
        assert container.streams.video[0].average_rate == 12
    assert [int(np.round(frame.mean() / 255)) for frame in frames] == [0, 0, 0, 1, 1]
    with pytest.raises(ArgumentError, match="not the name of a file"):
        VideoFolder(tmp_path).log_video("../run", torch.zeros(1, 1, 3, 8, 8))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"logger": object()}, "needs a method log_video"),
        ({"skip": 0}, "skip must be an integer of at least 1"),
        ({"max_frames": 0}, "max_frames must be an integer"),
        ({"center_crop": 2.5}, "center_crop must be an integer"),
    ],
)
def test_arguments(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        VideoRecorder(**{"logger": None, "tag": "run", **arguments})


def test_entry_that_is_not_an_image_is_refused() -> None:
    with pytest.raises(ArgumentError, match=r"got shape \(2, 5, 7\)"):
        VideoRecorder(None, "run")(TensorDict(pixels=torch.zeros(2, 5, 7)))
    recorder = VideoRecorder(Videos(), "run")
    recorder(TensorDict(pixels=torch.zeros(8, 8, 3)))
    recorder(TensorDict(pixels=torch.zeros(9, 8, 3)))
    with pytest.raises(ArgumentError, match="different shapes"):
        recorder.dump()

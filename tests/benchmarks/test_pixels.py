"""P4: frames of an Atari game, converted to small, stacked gray frames."""

from __future__ import annotations

from typing import Any

import gymnasium
import pytest
from gymnasium.wrappers import FrameStackObservation, GrayscaleObservation, ResizeObservation

from tests.benchmarks.bars import PIXELS
from tests.benchmarks.chains import Library, load
from tests.benchmarks.conftest import Measure

ENV = "ALE/Pong-v5"
FRAME_SKIP = 4
FRAMES = 200
ROUNDS = 5


def pixels_env(library: Library) -> Any:
    """The game under four transforms; seeded."""
    pytest.importorskip("ale_py")
    lib = load(library)
    env = lib.TransformedEnv(
        lib.GymEnv(ENV, frameskip=FRAME_SKIP),
        lib.Compose(
            lib.ToTensorImage(),
            lib.GrayScale(),
            lib.Resize(84, 84),
            lib.CatFrames(4, dim=-3, in_keys=["pixels"]),
        ),
    )
    env.set_seed(0)
    return env


def bare_env() -> gymnasium.Env[Any, Any]:
    """The game alone; seeded."""
    gymnasium.register_envs(pytest.importorskip("ale_py"))
    env = gymnasium.make(ENV, frameskip=FRAME_SKIP)
    env.reset(seed=0)
    return env


@pytest.mark.parametrize("library", ["tdx", "TorchRL"])
def test_pixels(measure: Measure, library: Library) -> None:
    env = pixels_env(library)
    measure(PIXELS, library, lambda: env.rollout(FRAMES), rounds=ROUNDS, units=FRAMES)
    assert env.rollout(3)["next", "pixels"].shape == (3, 4, 84, 84)


@pytest.mark.parametrize("contestant", ["bare", "Gymnasium"])
def test_pixels_without_tensordicts(measure: Measure, contestant: Any) -> None:
    env = bare_env()
    if contestant == "Gymnasium":
        pytest.importorskip("cv2")
        gray = GrayscaleObservation(env)
        env = FrameStackObservation(ResizeObservation(gray, (84, 84)), 4)
    env.action_space.seed(0)
    actions = [env.action_space.sample() for _ in range(FRAMES)]

    def steps() -> None:
        env.reset()
        for action in actions:
            env.step(action)

    measure(PIXELS, contestant, steps, rounds=ROUNDS, units=FRAMES)
    assert env.step(0)[0].shape == ((210, 160, 3) if contestant == "bare" else (4, 84, 84))

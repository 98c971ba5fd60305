"""P4 and P15: frames of an Atari game, converted to small, stacked gray frames."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.wrappers import FrameStackObservation, GrayscaleObservation, ResizeObservation

from tests.benchmarks.bare import make_env
from tests.benchmarks.bars import PIXELS, SERIAL_PIXELS, Contestant
from tests.benchmarks.chains import Library, libraries, load
from tests.benchmarks.conftest import Compare, Run

ENV = "ALE/Pong-v5"
FRAME_SKIP = 4
FRAMES, SERIAL_FRAMES = 100, 60
ENVS = 4
ROUNDS = 15
# Slow contestants run fewer steps per round.
SHARE = {"tdx": 1, "TorchRL": 5}


@pytest.fixture(autouse=True)
def _register_games() -> None:
    gymnasium.register_envs(pytest.importorskip("ale_py"))


def pixel_chain(library: Library) -> Any:
    """Return four transforms from frames to a stack of small gray ones."""
    lib = load(library)
    return lib.Compose(
        lib.ToTensorImage(),
        lib.GrayScale(),
        lib.Resize(84, 84),
        lib.CatFrames(4, dim=-3, in_keys=["pixels"]),
    )


def pixels_env(library: Library, envs: int = 1) -> Any:
    """Return the seeded game with four transforms."""
    lib = load(library)

    def make() -> Any:
        return lib.GymEnv(ENV, frameskip=FRAME_SKIP)

    base = make() if envs == 1 else lib.SerialEnv(envs, make)
    env = lib.TransformedEnv(base, pixel_chain(library))
    env.set_seed(0)
    assert env.rollout(3)["next", "pixels"].shape[-3:] == (4, 84, 84)
    return env


def pixels_rollout(library: Library, frames: int, envs: int = 1) -> Run:
    """Return a run of a rollout of the pixel env."""
    env = pixels_env(library, envs)
    return Run(lambda: env.rollout(frames), frames * envs)


def wrapped_game() -> gymnasium.Env[Any, Any]:
    """Return the game with the closest wrappers of Gymnasium."""
    gray = GrayscaleObservation(make_env(ENV, frameskip=FRAME_SKIP))
    return FrameStackObservation(ResizeObservation(gray, (84, 84)), 4)


def played_games(envs: Sequence[Any], frames: int) -> Run:
    """Return a run of several games, one after the other."""
    for env in envs:
        env.reset(seed=0)
        env.action_space.seed(0)
    actions = [envs[0].action_space.sample() for _ in range(frames)]

    def steps() -> None:
        for env in envs:
            env.reset()
        for action in actions:
            for env in envs:
                env.step(action)

    return Run(steps, frames * len(envs))


def vec_env_run() -> Run:
    """Return a run of wrapped games in the vector env of Stable-Baselines3."""
    from stable_baselines3.common.vec_env import DummyVecEnv

    makers: list[Callable[[], Any]] = [wrapped_game] * ENVS
    vec_env = DummyVecEnv(makers)
    actions = [np.full(ENVS, index % 6) for index in range(SERIAL_FRAMES)]

    def steps() -> None:
        vec_env.reset()
        for action in actions:
            vec_env.step(action)

    return Run(steps, SERIAL_FRAMES * ENVS)


def test_pixels_of_one_game(compare: Compare) -> None:
    runs: dict[Contestant, Run] = {
        library: pixels_rollout(library, FRAMES // SHARE[library]) for library in libraries()
    }
    runs["bare"] = played_games([make_env(ENV, frameskip=FRAME_SKIP)], FRAMES)
    if find_spec("cv2"):
        runs["Gymnasium"] = played_games([wrapped_game()], FRAMES)
    compare(PIXELS, runs, rounds=ROUNDS)


def test_pixels_of_several_games(compare: Compare) -> None:
    games = [make_env(ENV, frameskip=FRAME_SKIP) for _ in range(ENVS)]
    runs: dict[Contestant, Run] = {
        "tdx": pixels_rollout("tdx", SERIAL_FRAMES, ENVS),
        "single env": pixels_rollout("tdx", SERIAL_FRAMES),
        "bare": played_games(games, SERIAL_FRAMES),
    }
    if find_spec("cv2") and find_spec("stable_baselines3"):
        runs["SB3"] = vec_env_run()
    compare(SERIAL_PIXELS, runs, rounds=ROUNDS)

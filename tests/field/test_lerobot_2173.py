"""huggingface/lerobot#2173: one step of a pipeline that converts images takes most of the time.

The steps of that report run as wrappers here. They convert the images of two cameras to float32 on
the CPU; the remedy leaves them uint8 and converts on the device of the policy. Time is counted in
written bytes.
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

import tdx
from tdx.profiling import context
from tdx.profiling.clock import ClockMeter
from tests.profiling.fake_clock import FakeClock

SHAPE = (48, 64, 3)


class Cameras(gym.Env[Any, Any]):
    """Images of two cameras."""

    observation_space = spaces.Dict(
        {name: spaces.Box(0, 255, SHAPE, np.uint8) for name in ("front", "wrist")}
    )
    action_space = spaces.Box(-1.0, 1.0, (6,), np.float32)

    def __init__(self, clock: FakeClock) -> None:
        self.clock = clock

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> Any:
        self.clock.now += 1_000
        return self.observation_space.sample(), 0.0, False, False, {}


class Intervention(gym.Wrapper[Any, Any, Any, Any]):
    """Passes the action on."""


class VanillaObservationProcessor(gym.ObservationWrapper[Any, Any, Any]):
    """Converts the images to channels-first float32."""

    dtype: Any = np.float32

    def __init__(self, env: Any, clock: FakeClock) -> None:
        super().__init__(env)
        self.clock = clock
        high = 255 if self.dtype is np.uint8 else 1
        self.observation_space = spaces.Dict(
            {
                name: spaces.Box(0, high, (3, 48, 64), self.dtype)
                for name in env.observation_space.spaces
            }
        )

    def observation(self, observation: Any) -> Any:
        return {name: self.convert(image) for name, image in observation.items()}

    def convert(self, image: Any) -> Any:
        found = np.ascontiguousarray(image.transpose(2, 0, 1), np.float32) / np.float32(255)
        self.clock.now += found.nbytes
        return found


class UncopiedObservationProcessor(VanillaObservationProcessor):
    """Leaves the conversion to the device of the policy."""

    dtype = np.uint8

    def convert(self, image: Any) -> Any:
        return image.transpose(2, 0, 1)


def shares(kind: Any, monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """Return the share of each row of a profile."""
    clock = FakeClock()
    env = kind(Intervention(Cameras(clock)), clock)
    monkeypatch.setattr(context, "ClockMeter", lambda: ClockMeter(clock))
    with tdx.profile(env) as measured:
        env.reset(seed=0)
        for _ in range(5):
            env.step(env.action_space.sample())
    (mode,) = measured.result.modes
    rows = {row.part.name: row.total_ns for row in mode.rows if row.part.lane == "step"}
    total = sum(rows.values())
    return {name: spent / total for name, spent in rows.items()}


def test_slow_step_is_the_largest_row(monkeypatch: pytest.MonkeyPatch) -> None:
    found = shares(VanillaObservationProcessor, monkeypatch)
    assert max(found, key=lambda name: found[name]) == "VanillaObservationProcessor"
    assert found["VanillaObservationProcessor"] > 0.5
    assert found["Intervention"] == 0


def test_remedy_leaves_the_time_to_the_env(monkeypatch: pytest.MonkeyPatch) -> None:
    assert shares(UncopiedObservationProcessor, monkeypatch)["Cameras"] == 1


def test_stage_that_changes_dtype_and_keys_is_named() -> None:
    env = VanillaObservationProcessor(Intervention(Cameras(FakeClock())), FakeClock())
    changes = {change.key: change.stages for change in tdx.inspect(env).spec.changes}
    assert changes[("observation", "front")] == (1,)

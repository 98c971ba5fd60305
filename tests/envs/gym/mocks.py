"""Small Gymnasium envs with known values."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

BOX = spaces.Box(-1.0, 1.0, (2,), np.float32)


class SpaceEnv(gymnasium.Env[Any, Any]):
    """Env that observes seeded members of a space and records its inputs and outputs."""

    def __init__(
        self,
        observed: spaces.Space[Any] = BOX,
        acted: spaces.Space[Any] | None = None,
        length: int = 1000,
    ) -> None:
        self.observation_space = observed
        self.action_space = spaces.Discrete(2) if acted is None else acted
        self.length = length
        self.observed: list[Any] = []
        self.acted: list[Any] = []
        self.count = 0

    def _observe(self) -> Any:
        self.observation_space.seed(int(self.np_random.integers(2**31)))
        observation = self.observation_space.sample()
        self.observed.append(observation)
        return observation

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.count = 0
        return self._observe(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        # Gymnasium's vector envs pass rows of a scalar Box as scalars.
        member = np.asarray(action) if isinstance(self.action_space, spaces.Box) else action
        assert self.action_space.contains(member), f"{action!r} is not in {self.action_space}"
        self.acted.append(action)
        self.count += 1
        return self._observe(), 1.0, self.count >= self.length, False, {}


class CountEnv(gymnasium.Env[Any, Any]):
    """Env that counts its steps and episodes.

    Episode ``e`` ends after ``lengths[e % len(lengths)]`` steps. Unless ``copies``, all
    observations are the same array, which it overwrites.
    """

    observation_space = spaces.Box(0, 1000, (2,), np.int64)
    action_space = spaces.Discrete(2)

    def __init__(self, lengths: tuple[int, ...] = (3,), copies: bool = False) -> None:
        self.lengths = lengths
        self.copies = copies
        self.episode = -1
        self.buffer = np.zeros(2, np.int64)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.episode += 1
        self.buffer[:] = (self.episode, 0)
        return self._observed(), {"phase": "start"}

    def _observed(self) -> Any:
        return self.buffer.copy() if self.copies else self.buffer

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.buffer[1] += 1
        over = bool(self.buffer[1] >= self.lengths[self.episode % len(self.lengths)])
        info = {"count": int(self.buffer[1]), "phase": "end" if over else "middle"}
        return self._observed(), float(self.buffer[1]), over, False, info


class InfoEnv(SpaceEnv):
    """Env with an info in each step, of which a reset has a part."""

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        observation, _ = super().reset(seed=seed, options=options)
        return observation, {"score": 0.5, "_private": 1}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        *result, _ = super().step(action)
        info = {
            "score": 0.5 + self.count,
            "lives": self.count,
            "alive": True,
            "position": np.full(3, self.count, np.float32),
            "nested": {"speed": np.float64(self.count)},
            "name": f"step {self.count}",
            "_private": 1,
        }
        return (*result, info)


class FailingEnv(SpaceEnv):
    """Env that raises in the given method."""

    def __init__(self, phase: str) -> None:
        super().__init__()
        self.phase = phase

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        if self.phase == "reset":
            raise ZeroDivisionError("cannot begin\nand a second line")
        return super().reset(seed=seed, options=options)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if self.phase == "step":
            raise ZeroDivisionError("cannot continue\nand a second line")
        return super().step(action)


FAULTS = (
    "none",
    "shape",
    "overflow",
    "reward none",
    "reward overflow",
    "reward array",
)
"""Faults of :class:`WrongValuesEnv`."""


class WrongValuesEnv(gymnasium.Env[Any, Any]):
    """Env that counts its steps and violates its space in one of them.

    Args:
        fault: One of :data:`FAULTS`; for a dict also ``"missing"``.
        at: Number of the step, from 0, counted over all episodes. Negative: in the reset.
        nested: Observe a dict with ``a`` and ``b``; the fault is in ``b``.
        length: Steps of an episode.
        dtype: Dtype of the valid observations.
    """

    action_space = spaces.Discrete(2)

    def __init__(
        self,
        fault: str = "none",
        at: int = 5,
        nested: bool = False,
        length: int = 1000,
        dtype: str = "float32",
    ) -> None:
        box = spaces.Box(-np.inf, np.inf, (3,), np.float32)
        self.observation_space = spaces.Dict({"a": box, "b": box}) if nested else box
        self.fault, self.at, self.nested, self.length, self.dtype = fault, at, nested, length, dtype
        self.total = self.count = 0
        self.resets = 0

    def _observed(self, is_wrong: bool) -> Any:
        right = np.full(3, self.total, self.dtype)
        wrong: Any = right
        if is_wrong and self.fault == "none":
            wrong = None
        elif is_wrong and self.fault == "shape":
            wrong = np.zeros((1, 3), np.float32)
        elif is_wrong and self.fault == "overflow":
            wrong = np.full(3, 1e300)
        if not self.nested:
            return wrong
        return {"a": right} if is_wrong and self.fault == "missing" else {"a": right, "b": wrong}

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.count = 0
        self.resets += 1
        return self._observed(self.at == -self.resets), {}

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        is_wrong = self.total == self.at
        self.total += 1
        self.count += 1
        reward: Any = float(self.total)
        if is_wrong and self.fault.startswith("reward"):
            reward = {"none": None, "overflow": 1e300, "array": np.zeros(2)}[self.fault[7:]]
        return self._observed(is_wrong), reward, self.count >= self.length, False, {}

"""Envs that misbehave, and a stage that fails late."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import torch
from tensordict import TensorDictBase

from tdx import Composite, PendulumEnv, Transform, Unbounded

NAME = "[red]ключ[/]"
"""Non-ASCII key that looks like Textual markup."""


class Bad(PendulumEnv):
    """Env whose next fault is named by a file: ``hang step``, ``exit made``.

    Args:
        mood: Path of the file. Empty file: no fault.
    """

    def __init__(self, mood: str) -> None:
        super().__init__()
        self.mood = Path(mood)
        self._misbehave("made")

    def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
        self._misbehave("reset")
        return super()._reset(tensordict, **kwargs)

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        how = self._misbehave("step")
        stepped = super()._step(tensordict)
        if how in ("nan", "inf"):
            stepped["observation"][..., 0] = float(how)
            stepped["reward"] = torch.full_like(stepped["reward"], -float(how))
        return stepped

    def _misbehave(self, place: str) -> str:
        how, _, where = self.mood.read_text().partition(" ")
        if where != place:
            return ""
        if how == "raise":
            raise ValueError(f"the gripper {NAME} is stuck")
        if how == "hang":
            time.sleep(1000)
        elif how == "slow":
            time.sleep(0.05)
        elif how == "exit":
            sys.stderr.write("the simulator gave up")
            sys.stderr.flush()
            os._exit(3)
        elif how == "crash":
            os.kill(os.getpid(), signal.SIGSEGV)
        elif how == "print":
            os.write(1, b"\x1b[2J\x1b[31mNOISE\xff\r\n" * 20_000)
            os.write(2, b"NOISE\n" * 20_000)
        return how


class FailsAt(PendulumEnv):
    """Env that fails in one of its steps.

    Args:
        step: Number of the step, from 1.
        how: ``hang``, ``stick`` (hang in C code that holds the interpreter lock) or ``raise``.
    """

    def __init__(self, step: int = 4, how: str = "hang") -> None:
        super().__init__()
        self.left, self.how = step, how

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        self.left -= 1
        if self.left <= 0:
            if self.how == "raise":
                raise ValueError("the gripper is stuck")
            sleep = ctypes.PyDLL(None).sleep if self.how == "stick" else time.sleep
            sleep(1000)
        return super()._step(tensordict)


class Huge(PendulumEnv):
    """Env with hundreds of keys, some with unusual names, and a large image.

    Args:
        keys: Number of keys.
        side: Width and height of the image, in pixels.
    """

    def __init__(self, keys: int = 300, side: int = 4096) -> None:
        super().__init__()
        self.more = Composite(
            {
                **{f"sensor_{number}": Unbounded(3) for number in range(keys)},
                NAME: Unbounded(2),
                "pixels": Unbounded((side, side, 3), dtype=torch.uint8),
            }
        )
        self.observation_spec = Composite({**self.observation_spec, **self.more})

    def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
        return super()._reset(tensordict, **kwargs).update(self.more.zero())

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        return super()._step(tensordict).update(self.more.zero())


class FailsLate(Transform):
    """Transform that raises at one value.

    Args:
        at: Number of the value, from 1.
    """

    def __init__(self, at: int = 1000) -> None:
        super().__init__(in_keys=["reward"], out_keys=["reward"])
        self.at, self.seen = at, 0

    def _apply_transform(self, reward: torch.Tensor) -> torch.Tensor:
        self.seen += 1
        if self.seen == self.at:
            raise ValueError(f"{NAME} overflows")
        return reward

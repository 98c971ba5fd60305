"""Envs with a step that never returns."""

from __future__ import annotations

import ctypes
import time

from tensordict import TensorDictBase

from tdx import PendulumEnv


class HangsAtStep3(PendulumEnv):
    """Env that sleeps in its fourth step."""

    made = 0

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        self.made += 1
        if self.made > 3:
            self.hang()
        return super()._step(tensordict)

    def hang(self) -> None:
        time.sleep(1000)


class SticksAtStep3(HangsAtStep3):
    """Env whose fourth step hangs in C code that holds the interpreter lock."""

    def hang(self) -> None:
        ctypes.PyDLL(None).sleep(1000)

"""Env with a step that never returns."""

from __future__ import annotations

import time

from tensordict import TensorDictBase

from tdx import PendulumEnv


class HangsAtStep3(PendulumEnv):
    """Env that sleeps in its fourth step."""

    made = 0

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        self.made += 1
        if self.made > 3:
            time.sleep(1000)
        return super()._step(tensordict)

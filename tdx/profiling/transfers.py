"""The copies that tdx itself makes of what an env on the host returns: a row of their own."""

from __future__ import annotations

from typing import Any

from tdx.core.envs import EnvBase
from tdx.core.meter import TRANSFERS, Meter
from tdx.envs.gym.wrapper import GymWrapper
from tdx.profiling.patches import Patches


def measure_transfers(base: EnvBase, meter: Meter, patches: Patches) -> None:
    """Have those of a Gymnasium env measured; there are none where its results stay on the host.

    Args:
        base: the env before all chains.
        meter: what measures.
        patches: what takes everything back in the end.
    """
    if not isinstance(base, GymWrapper) or base.device.type == "cpu":
        return
    program: Any = base._program
    if program._finish is not None:
        patches.put(program, "_finish", meter.timed(TRANSFERS, program._finish))

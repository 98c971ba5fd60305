"""Choose the passes of a profile and the accelerator they observe."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tdx.core.envs import EnvBase
from tdx.profiling.passes.accelerator import Accelerator, TorchAccelerator, list_accelerators
from tdx.profiling.passes.device import DeviceTimes, DeviceWork, Syncs
from tdx.profiling.passes.host import DeviceMemory, ObjectMemory, Operators, TensorMemory
from tdx.profiling.passes.observer import Observer

PassName = Literal["memory", "operators", "device"]
PASSES: tuple[PassName, ...] = ("memory", "operators", "device")
MAX_HOST_STEPS = 1000
"""More of them tell nothing new, and what is noted of each takes memory."""
MAX_DEVICE_STEPS = 500
"""The same on an accelerator, whose traces are larger; all passes make as many."""


@dataclass(frozen=True, slots=True)
class AcceleratorLookup:
    """The accelerator of an env, if it has one.

    Args:
        accelerator: what is asked; ``None`` where all is on the host, or it cannot be timed.
        notes: what a reader must know, each a sentence.
    """

    accelerator: Accelerator | None = None
    notes: tuple[str, ...] = ()


def find_accelerator(env: EnvBase, policy: object = None) -> AcceleratorLookup:
    """The accelerator that an env, its chain or its policy works on.

    Args:
        env: the env, with its chain.
        policy: what gives the actions.

    Raises:
        DeviceError: it is not on this machine.
    """
    devices = list_accelerators(env, policy)
    if not devices:
        return AcceleratorLookup()
    notes = [
        f"{device}: one device is measured at a time, and that is {devices[0]}."
        for device in devices[1:]
    ]
    accelerator = TorchAccelerator(devices[0])
    if accelerator.untimed is not None:
        why = f"{accelerator.name} cannot be timed: {accelerator.untimed}."
        return AcceleratorLookup(None, (*notes, why))
    return AcceleratorLookup(accelerator, (*notes, *accelerator.missing))


def make_observers(name: PassName, accelerator: Accelerator | None) -> list[Observer]:
    """What is to be recorded for a pass, each in a rollout of its own.

    Args:
        name: of the pass.
        accelerator: of the env, if it has one.
    """
    if name == "memory":
        return [TensorMemory(), ObjectMemory()]
    if name == "operators":
        return [Operators()]
    if accelerator is None:
        return []
    found: list[Observer] = [DeviceTimes(accelerator)]
    found += [DeviceMemory(accelerator)] if accelerator.sees_memory else []
    found += [Syncs(accelerator)] if accelerator.sees_syncs else []
    return found + ([DeviceWork(accelerator)] if accelerator.sees_work else [])


def max_recorded_steps(observer: Observer) -> int:
    """How many steps are recorded at most."""
    on_device = isinstance(observer, DeviceTimes | DeviceMemory | Syncs | DeviceWork)
    return MAX_DEVICE_STEPS if on_device else MAX_HOST_STEPS

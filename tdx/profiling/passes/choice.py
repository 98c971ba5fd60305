"""Choose the passes of a profile and the accelerator they observe."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from tdx.core.envs import EnvBase
from tdx.profiling.passes.accelerator import TorchAccelerator, list_accelerators
from tdx.profiling.passes.device import (
    DeviceMemory,
    DeviceTimes,
    DeviceWork,
    SynchronizedTimes,
    Syncs,
)
from tdx.profiling.passes.host import ObjectMemory, Operators, TensorMemory
from tdx.profiling.passes.observer import Observer
from tdx.profiling.plain import PassName

MAX_HOST_STEPS = 1000
"""Maximum number of recorded steps; more add no information and need memory."""
MAX_DEVICE_STEPS = 500
"""Maximum number of recorded steps on an accelerator, whose traces are larger."""


@dataclass(frozen=True, slots=True)
class AcceleratorLookup:
    """Accelerator of an env, if it has one that can be timed, and notes for the reader."""

    accelerator: TorchAccelerator | None = None
    notes: tuple[str, ...] = ()


def find_accelerator(env: EnvBase, policy: object = None) -> AcceleratorLookup:
    """Find the accelerator that an env, its chain or its policy uses.

    Raises:
        DeviceError: It does not exist on this machine.
    """
    devices = list_accelerators(env, policy)
    if not devices:
        return AcceleratorLookup()
    notes = [
        f"{device}: not measured, as only one device is measured at a time: {devices[0]}."
        for device in devices[1:]
    ]
    accelerator = TorchAccelerator(devices[0])
    if accelerator.timing_error is not None:
        why = f"{accelerator.name} cannot be timed: {accelerator.timing_error}."
        return AcceleratorLookup(None, (*notes, why))
    return AcceleratorLookup(accelerator, (*notes, *accelerator.missing))


def make_observers(
    name: PassName,
    accelerator: TorchAccelerator | None,
    clock: Callable[[], int] = time.perf_counter_ns,
) -> list[Observer]:
    """Create the observers of a pass, each with its own rollout."""
    if name == "memory":
        return [TensorMemory(), ObjectMemory()]
    if name == "operators":
        return [Operators()]
    if accelerator is None:
        return []
    observers: list[Observer] = []
    if accelerator.reports_work:
        observers.append(DeviceWork(accelerator))
    elif accelerator.reports_syncs:
        observers.append(Syncs(accelerator))
    # After those: the time on the device depends on where the host waits.
    observers += [DeviceTimes(accelerator, clock), SynchronizedTimes(accelerator, clock)]
    return observers + ([DeviceMemory(accelerator)] if accelerator.reports_memory else [])

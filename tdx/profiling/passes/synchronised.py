"""The mode in which the host waits for the device around each part."""

from __future__ import annotations

from collections.abc import Callable

from tdx.profiling.passes.accelerator import Accelerator

SYNC = (
    "Sync mode: the host waits for the device before and after each part, so times hold what the "
    "device does, and the rollout is slower than it is without."
)
NOTHING_TO_WAIT_FOR = "Sync mode changes nothing here: all is on the host."


def synchronised(clock: Callable[[], int], accelerator: Accelerator | None) -> Callable[[], int]:
    """A clock that is read once the device has done all that it was given.

    Args:
        clock: gives nanoseconds.
        accelerator: the device; with none the clock is as it is.
    """
    if accelerator is None:
        return clock

    def read() -> int:
        accelerator.synchronize()
        return clock()

    return read

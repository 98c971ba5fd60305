"""The devices that an env may be on."""

from __future__ import annotations

import torch

from tdx.errors import DeviceError
from tdx.specs.conversion import as_device


def present_device(device: torch.device | str | int | None) -> torch.device:
    """The device, the CPU where none is given; ``"cuda"`` gets the index of the current one.

    Raises:
        DeviceError: the name is no device, or this machine has none of it.

    Example:
        >>> present_device(None)
        device(type='cpu')
    """
    try:
        found = torch.device("cpu" if device is None else device)
    except RuntimeError:
        raise DeviceError(
            f"{device!r} is no device", hint="for example 'cpu' or 'cuda:0'"
        ) from None
    if found.type in ("cpu", "meta"):
        return found
    if (found.index or 0) >= _count(found.type):
        raise DeviceError(f"there is no device {found} on this machine", hint="use 'cpu'")
    return as_device(found)


def _count(kind: str) -> int:
    module = getattr(torch, kind, None)
    if module is None or not module.is_available():
        return 0
    return int(module.device_count())

"""The accelerator of torch, also for releases that have no ``torch.accelerator``, or less of it.

``torch.accelerator`` exists since torch 2.6, and its memory statistics since torch 2.9. The module
of a device type, such as ``torch.cuda``, has the same functions in all releases.
"""

from __future__ import annotations

from typing import Any

import torch

_TYPES = ("cuda", "xpu", "mps", "mtia")
"""Device types of accelerators, for releases of torch that cannot be asked."""


def current_accelerator() -> torch.device | None:
    """Return the available accelerator without an index; ``None`` without one."""
    if hasattr(torch, "accelerator"):
        if not torch.accelerator.is_available():
            return None
        return torch.accelerator.current_accelerator()
    for name in _TYPES:
        if getattr(torch, name).is_available():
            return torch.device(name)
    return None


def target_device(*args: object, **kwargs: object) -> torch.device | None:
    """Return the device in arguments of ``nn.Module.to``; ``None`` if they name none."""
    given = args[0] if args else kwargs.get("device", kwargs.get("tensor"))
    if isinstance(given, torch.Tensor):
        return given.device
    return torch.device(given) if isinstance(given, (str, int, torch.device)) else None


def list_devices() -> list[torch.device]:
    """Return the devices of the available accelerator, each with its index."""
    device = current_accelerator()
    if device is None:
        return []
    owner = torch.accelerator if hasattr(torch, "accelerator") else torch.get_device_module(device)
    return [torch.device(device.type, index) for index in range(owner.device_count())]


def move(tensor: torch.Tensor, device: torch.device | None) -> torch.Tensor:
    """Return a tensor on a device, if one is given; the host waits only for a copy to itself."""
    if device is None:
        return tensor
    # A copy to the host that is not waited for could be read before it is there.
    return tensor.to(device, non_blocking=device.type != "cpu")


def synchronize(device: torch.device) -> None:
    """Wait until all queued work of a device is complete."""
    _call_for_device("synchronize", device)


def current_stream(device: torch.device) -> Any:
    """Return the stream to which work for a device is added."""
    return _call_for_device("current_stream", device)


def memory_stats(device: torch.device) -> dict[str, Any]:
    """Return the statistics of the device's allocator; AttributeError if torch has none for it."""
    found: dict[str, Any] = _call_for_device("memory_stats", device)
    return found


def reset_peak_memory_stats(device: torch.device) -> None:
    """Restart the peak values in :func:`memory_stats`."""
    _call_for_device("reset_peak_memory_stats", device)


def _call_for_device(name: str, device: torch.device) -> Any:
    general = getattr(getattr(torch, "accelerator", None), name, None)
    if general is not None:
        return general(device)
    function = getattr(torch.get_device_module(device), name)
    # The functions of this type of device take no device: there is only one.
    return function() if device.type == "mps" else function(device)

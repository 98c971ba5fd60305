"""Accelerators: events, synchronization, memory and traces of a device, as torch reports them."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

from tdx.core.envs import EnvBase
from tdx.core.envs.env_specs import available_device
from tdx.foundation import accelerators
from tdx.foundation.nvml import GpuState, read_gpu
from tdx.foundation.simulated_cuda import calling_line

_SYNC_WARNING = "called a synchronizing CUDA operation"
_PROTOTYPE_WARNING = "Synchronization debug mode is a prototype"
_PROFILER = (f"{Path(__file__).parents[1]}{os.sep}",)


OnSync = Callable[[str, bool], AbstractContextManager[object]]
"""Callback for a synchronization, with its ``file:line``. ``True``: it is over; otherwise, it is in
the context that is returned."""


@contextmanager
def watch_syncs(callback: OnSync) -> Iterator[None]:
    """Call a function with the place, ``file:line``, of each synchronization in the block.

    torch warns about most of them; other warnings are unchanged. Torch keeps warnings until the
    call that caused them returns to Python, so those are over. ``synchronize`` of ``torch.cuda``,
    of its events and of ``torch.accelerator`` do not warn, so they are replaced. Libraries that
    wait without torch are not detected, nor is ``torch.Event.synchronize``.
    """

    def reporting(function: Callable[..., object]) -> Callable[..., object]:
        def synchronize(*args: Any, **kwargs: Any) -> object:
            with callback(calling_line(_PROFILER), False):
                return function(*args, **kwargs)

        return synchronize

    before = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings():
        show = warnings.showwarning

        def shown(
            message: Warning | str,
            category: type[Warning],
            filename: str,
            lineno: int,
            file: Any = None,
            line: str | None = None,
        ) -> None:
            if _SYNC_WARNING in str(message):
                with callback(calling_line(_PROFILER) or f"{filename}:{lineno}", True):
                    pass
            else:
                show(message, category, filename, lineno, file, line)

        warnings.filterwarnings("always", message=_SYNC_WARNING)
        warnings.filterwarnings("ignore", message=_PROTOTYPE_WARNING)
        warnings.showwarning = shown
        torch.cuda.set_sync_debug_mode("warn")
        silent: list[Any] = [torch.cuda, torch.cuda.Event]
        # torch 2.5 has none.
        silent += [torch.accelerator] if hasattr(torch, "accelerator") else []
        originals = [owner.synchronize for owner in silent]
        try:
            for owner, function in zip(silent, originals, strict=True):
                owner.synchronize = reporting(function)
            yield
        finally:
            for owner, function in zip(silent, originals, strict=True):
                owner.synchronize = function
            torch.cuda.set_sync_debug_mode(before)


_ACTIVITIES = {"cuda": "CUDA", "xpu": "XPU"}


@contextmanager
def record_trace(
    path: Path, activities: Sequence[torch.profiler.ProfilerActivity] = ()
) -> Iterator[None]:
    """Write a trace of the host and other activities; compressed if the path ends in ``.gz``."""
    profiler = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU, *activities])
    profiler.start()
    try:
        yield
    finally:
        profiler.stop()
        profiler.export_chrome_trace(str(path))


class TorchAccelerator:
    """A device of torch that processes its queue of work asynchronously.

    Attributes:
        timing_error: Why its work cannot be timed. ``None``: it can.
        missing: What it does not report, each a sentence.

    Raises:
        DeviceError: It does not exist.
    """

    def __init__(self, device: torch.device | str) -> None:
        self._device = available_device(device)
        self.name = str(self._device)
        self._events: list[torch.Event] = []
        self._load: torch.Tensor | None = None
        kind = self._device.type
        activity = getattr(torch.profiler.ProfilerActivity, _ACTIVITIES.get(kind, ""), None)
        self._activity = activity if activity in torch.profiler.supported_activities() else None
        self.reports_work = self._activity is not None
        self.reports_syncs = kind == "cuda"
        self.timing_error = self._find_timing_error()
        self.reports_memory = self._has_memory_stats()
        supported = {
            "where the host waits for it": self.reports_syncs,
            "its memory use": self.reports_memory,
            "its kernels and copies": self.reports_work,
        }
        self.missing = tuple(
            f"{self.name}: torch does not report {what} here."
            for what, can in supported.items()
            if not can
        )

    def _find_timing_error(self) -> str | None:
        """Time an event; the first tensor, event and synchronization also initialize the device."""
        try:
            self._initialize()
            first, second = self.mark(), self.mark()
            self.synchronize()
            self.elapsed_ns(first, second)
            self.release([first, second])
        except (RuntimeError, NotImplementedError) as error:
            return next(iter(str(error).splitlines()), type(error).__name__)
        return None

    def _initialize(self) -> None:
        """Initialize the allocator, which reports nothing before its first use."""
        torch.zeros(1, device=self._device)

    def _has_memory_stats(self) -> bool:
        try:
            self.memory()
            self.reset_peak()
        except (RuntimeError, NotImplementedError, KeyError, AttributeError):
            return False
        return True

    def mark(self) -> Any:
        """Put an event into the current stream, which records when the device reaches it."""
        if self._events:
            event = self._events.pop()
        else:
            event = torch.Event(device=self._device, enable_timing=True)
        event.record(accelerators.current_stream(self._device))
        return event

    def release(self, events: list[Any]) -> None:
        """Reuse events whose times were read."""
        self._events += events

    def is_capturing(self) -> bool:
        """Return True if work is recorded into a graph, in which it must not wait or be timed."""
        return self._device.type == "cuda" and torch.cuda.is_current_stream_capturing()

    def occupy(self) -> None:
        """Queue work for some milliseconds: products of 17 billion operations each."""
        if self._load is None:
            self._load = torch.zeros(2048, 2048, device=self._device)
        for _ in range(50):
            torch.mm(self._load, self._load)

    def gpu(self) -> GpuState | str:
        """Return the state that the driver reports, or why there is none, as a sentence."""
        if self._device.type != "cuda":
            return f"{self.name}: total memory and clocks are read on NVIDIA GPUs only."
        return read_gpu(self._device)

    def elapsed_ns(self, earlier: Any, later: Any) -> int:
        """Return the time between two events after both were reached."""
        return round(earlier.elapsed_time(later) * 1e6)

    def synchronize(self) -> None:
        """Wait until the device has finished its work."""
        accelerators.synchronize(self._device)

    def memory(self) -> tuple[int, int, int]:
        """Return bytes allocated so far, bytes in use, and the peak since :meth:`reset_peak`."""
        stats = accelerators.memory_stats(self._device)
        prefix = "allocated_bytes.all."
        return stats[prefix + "allocated"], stats[prefix + "current"], stats[prefix + "peak"]

    def reserved_bytes(self) -> int:
        """Return the bytes that torch holds, in use or for later use."""
        reserved: int = accelerators.memory_stats(self._device)["reserved_bytes.all.current"]
        return reserved

    def reset_peak(self) -> None:
        accelerators.reset_peak_memory_stats(self._device)

    def record_syncs(self, callback: OnSync) -> AbstractContextManager[None]:
        """Call a function with the place, ``file:line``, of each synchronization in the block."""
        return watch_syncs(callback)

    @contextmanager
    def record_trace(self, path: Path) -> Iterator[None]:
        """Write the trace of the block to a file when it ends."""
        with record_trace(path, [] if self._activity is None else [self._activity]):
            yield
            # Queued work would be missing from the trace.
            self.synchronize()


def list_accelerators(env: EnvBase, policy: object = None) -> list[torch.device]:
    """List the devices other than the host that an env, its chain or its policy uses."""
    devices = dict.fromkeys([env.main_device])
    for spec in (env.output_spec, env.input_spec):
        leaves = spec.values(include_nested=True, leaves_only=True)
        devices |= dict.fromkeys(leaf.device for leaf in leaves if leaf.device is not None)
    for module in (env, policy):
        if isinstance(module, nn.Module):
            devices |= dict.fromkeys(tensor.device for tensor in module.parameters())
            devices |= dict.fromkeys(tensor.device for tensor in module.buffers())
    return [device for device in devices if device.type not in ("cpu", "meta")]


SYNC_NOTE = (
    "Sync mode: the host waits for the device before and after each part, so times include device "
    "work, and the rollout is slower than usual."
)
NO_SYNC_NOTE = "Sync mode has no effect: everything runs on the host."


def synchronized_clock(
    clock: Callable[[], int], accelerator: TorchAccelerator | None
) -> Callable[[], int]:
    """Return a clock that waits for the device, if there is one, before each reading."""
    if accelerator is None:
        return clock

    def read() -> int:
        if not accelerator.is_capturing():
            accelerator.synchronize()
        return clock()

    return read

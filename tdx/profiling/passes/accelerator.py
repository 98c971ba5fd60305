"""The few things that an accelerator is asked for, and those of torch behind them."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import nn

from tdx.core.envs import EnvBase
from tdx.core.envs.env_specs import available_device
from tdx.profiling.passes.device_trace import TraceEvent, read_trace
from tdx.profiling.passes.sync_places import watched_syncs

_ACTIVITIES = {"cuda": "CUDA", "xpu": "XPU"}


class Accelerator(Protocol):
    """A device that works through what the host gives it, while the host goes on.

    Args:
        name: such as ``cuda:0``.
        untimed: why its work cannot be timed; ``None`` where it can.
        missing: what cannot be seen of it, each a sentence.
        sees_syncs: whether it tells where the host waits for it.
        sees_memory: whether it tells how much of its memory is taken.
        sees_work: whether it tells which kernels and copies it runs.
    """

    name: str
    untimed: str | None
    missing: tuple[str, ...]
    sees_syncs: bool
    sees_memory: bool
    sees_work: bool

    def mark(self) -> Any:
        """A mark in its queue of work, which gets the time when the device comes to it."""
        ...

    def between_ns(self, earlier: Any, later: Any) -> int:
        """The time between two marks, once it has come to both."""
        ...

    def synchronize(self) -> None:
        """Wait until it has done all its work."""
        ...

    def memory(self) -> tuple[int, int, int]:
        """Bytes ever taken, taken now, and the most since :meth:`forget_peak`."""
        ...

    def forget_peak(self) -> None:
        """Have the peak begin anew, at what is taken now."""
        ...

    def watched(self, told: Callable[[str], None]) -> AbstractContextManager[None]:
        """Have a function told the place, ``file:line``, of each wait in a block."""
        ...

    def traced(self, events: list[TraceEvent]) -> AbstractContextManager[None]:
        """Put what the host and the device do in a block into a list, as it ends."""
        ...


class TorchAccelerator:
    """A device of torch's; see :class:`Accelerator`.

    Args:
        device: such as ``"cuda:0"``.

    Raises:
        DeviceError: it is not there.
    """

    def __init__(self, device: torch.device | str) -> None:
        self._device = available_device(device)
        self.name = str(self._device)
        kind = self._device.type
        activity = getattr(torch.profiler.ProfilerActivity, _ACTIVITIES.get(kind, ""), None)
        self._activity = activity if activity in torch.profiler.supported_activities() else None
        self.sees_work = self._activity is not None
        self.sees_syncs = kind == "cuda"
        self.untimed = self._reason()
        self.sees_memory = self._has_memory_stats()
        seen = {
            "where the host waits for it": self.sees_syncs,
            "what memory is taken on it": self.sees_memory,
            "which kernels and copies run on it": self.sees_work,
        }
        self.missing = tuple(
            f"{self.name}: torch cannot tell {what} here." for what, can in seen.items() if not can
        )

    def _reason(self) -> str | None:
        """Try it; its first tensor, event and wait also set much up."""
        try:
            self._set_up()
            first, second = self.mark(), self.mark()
            self.synchronize()
            self.between_ns(first, second)
        except (RuntimeError, NotImplementedError) as error:
            return next(iter(str(error).splitlines()), type(error).__name__)
        return None

    def _set_up(self) -> None:
        """Have torch make its allocator, which tells nothing before that."""
        torch.zeros(1, device=self._device)

    def _has_memory_stats(self) -> bool:
        try:
            self.memory()
            self.forget_peak()
        except (RuntimeError, NotImplementedError, KeyError, AttributeError):
            return False
        return True

    def mark(self) -> torch.Event:
        """See :class:`Accelerator`; on the current stream."""
        event = torch.Event(device=self._device, enable_timing=True)
        event.record(torch.accelerator.current_stream(self._device))
        return event

    def between_ns(self, earlier: torch.Event, later: torch.Event) -> int:
        """See :class:`Accelerator`."""
        return round(earlier.elapsed_time(later) * 1e6)

    def synchronize(self) -> None:
        """See :class:`Accelerator`."""
        torch.accelerator.synchronize(self._device)

    def memory(self) -> tuple[int, int, int]:
        """See :class:`Accelerator`."""
        stats = torch.accelerator.memory_stats(self._device)
        taken = "allocated_bytes.all."
        return stats[taken + "allocated"], stats[taken + "current"], stats[taken + "peak"]

    def forget_peak(self) -> None:
        """See :class:`Accelerator`."""
        torch.accelerator.reset_peak_memory_stats(self._device)

    def watched(self, told: Callable[[str], None]) -> AbstractContextManager[None]:
        """See :class:`Accelerator`."""
        return watched_syncs(told)

    @contextmanager
    def traced(self, events: list[TraceEvent]) -> Iterator[None]:
        """See :class:`Accelerator`; times are torch's profiler's, which slows the host down."""
        activities = [torch.profiler.ProfilerActivity.CPU]
        activities += [self._activity] if self._activity is not None else []
        profiler = torch.profiler.profile(activities=activities)
        try:
            with profiler:
                yield
                # What still waits in its queue would not be seen.
                self.synchronize()
        finally:
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder, "trace.json")
                profiler.export_chrome_trace(str(path))
                events += read_trace(path.read_text(encoding="utf-8"))


def accelerators_of(env: EnvBase, policy: object = None) -> list[torch.device]:
    """The devices other than the host that an env, its chain or its policy works on.

    Args:
        env: the env, with its chain.
        policy: what gives the actions.
    """
    found = dict.fromkeys([env.device])
    for spec in (env.output_spec, env.input_spec):
        leaves = spec.values(include_nested=True, leaves_only=True)
        found |= dict.fromkeys(leaf.device for leaf in leaves if leaf.device is not None)
    for module in (env, policy):
        if isinstance(module, nn.Module):
            found |= dict.fromkeys(each.device for each in module.parameters())
            found |= dict.fromkeys(each.device for each in module.buffers())
    return [device for device in found if device.type not in ("cpu", "meta")]

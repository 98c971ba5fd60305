"""Accelerators: events, synchronization, memory and traces of a device, as torch reports them."""

from __future__ import annotations

import json
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, Literal, NamedTuple, Protocol

import torch
from torch import nn

from tdx.core.envs import EnvBase
from tdx.core.envs.devices import present_device
from tdx.profiling.passes.observer import parse_part_index

TraceKind = Literal["part", "launch", "kernel", "copy", "fill"]
_TRACE_KINDS: dict[str, TraceKind] = {
    "user_annotation": "part",
    "cpu_op": "part",
    "cuda_runtime": "launch",
    "cuda_driver": "launch",
    "xpu_runtime": "launch",
    "xpu_driver": "launch",
    "kernel": "kernel",
    "gpu_memcpy": "copy",
    "gpu_memset": "fill",
}


class TraceEvent(NamedTuple):
    """Something that the host or the device did.

    Args:
        kind: a call of a part, or a launch, on the host; a kernel, copy or fill on the device.
        name: what it is called there.
        start_ns: when it began.
        duration_ns: how long it took.
        thread: on which of the host's threads it was.
        link: what a launch and its work on the device share; -1 for none.
        nbytes: how much was copied.
    """

    kind: TraceKind
    name: str
    start_ns: int
    duration_ns: int
    thread: int = 0
    link: int = -1
    nbytes: int = 0


def read_trace(text: str) -> list[TraceEvent]:
    """The events of a Chrome trace that torch has written, as far as they matter here.

    Args:
        text: JSON.

    Example:
        >>> read_trace('{"traceEvents": [{"ph": "X", "cat": "gpu_memcpy", "ts": 1, "dur": 2,'
        ...     '"name": "Memcpy HtoD", "tid": 7, "args": {"bytes": 64, "correlation": 3}}]}')
        [TraceEvent(kind='copy', name='Memcpy HtoD', start_ns=1000, duration_ns=2000, thread=7,
        link=3, nbytes=64)]
    """
    found = []
    for each in json.loads(text)["traceEvents"]:
        kind = _TRACE_KINDS.get(each.get("cat", ""))
        if kind is None or each.get("ph") != "X":
            continue
        if kind == "part" and parse_part_index(each["name"]) < 0:
            continue
        args = each.get("args", {})
        found.append(
            TraceEvent(
                kind,
                each["name"],
                round(float(each["ts"]) * 1000),
                round(float(each.get("dur", 0)) * 1000),
                int(each["tid"]),
                int(args.get("correlation", -1)),
                int(args.get("bytes", 0)),
            )
        )
    return found


_SYNC_WARNING = "called a synchronizing CUDA operation"
_PROTOTYPE_WARNING = "Synchronization debug mode is a prototype"
_REPOSITORY = Path(__file__).parents[3]
_SKIPPED_MODULES = ("torch.", "torchvision.", "tensordict.", "warnings.", "tdx.profiling.")


@contextmanager
def watch_syncs(told: Callable[[str], None]) -> Iterator[None]:
    """Have a function told the place, ``file:line``, of each wait in the block.

    torch warns of each; other warnings are as ever. What waits without torch's knowing, such as
    a library of its own, is not seen.
    """
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
                told(_find_caller(sys._getframe(1)) or f"{filename}:{lineno}")
            else:
                show(message, category, filename, lineno, file, line)

        warnings.filterwarnings("always", message=_SYNC_WARNING)
        warnings.filterwarnings("ignore", message=_PROTOTYPE_WARNING)
        warnings.showwarning = shown
        torch.cuda.set_sync_debug_mode("warn")
        try:
            yield
        finally:
            torch.cuda.set_sync_debug_mode(before)


def _find_caller(frame: FrameType | None) -> str | None:
    """The innermost line that is neither torch's nor the profiler's."""
    while frame is not None:
        module = f"{frame.f_globals.get('__name__', '')}."
        if not module.startswith(_SKIPPED_MODULES):
            return f"{_shorten_path(frame.f_code.co_filename)}:{frame.f_lineno}"
        frame = frame.f_back
    return None


def _shorten_path(filename: str) -> str:
    """A path from the place that a person looks from."""
    path = Path(filename)
    for root in (_REPOSITORY, Path.cwd()):
        if path.is_relative_to(root):
            return path.relative_to(root).as_posix()
    return filename


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
        self._device = present_device(device)
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
        return watch_syncs(told)

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


def list_accelerators(env: EnvBase, policy: object = None) -> list[torch.device]:
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


SYNC_NOTE = (
    "Sync mode: the host waits for the device before and after each part, so times hold what the "
    "device does, and the rollout is slower than it is without."
)
NO_SYNC_NOTE = "Sync mode changes nothing here: all is on the host."


def synchronized_clock(
    clock: Callable[[], int], accelerator: Accelerator | None
) -> Callable[[], int]:
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

"""The accelerator of torch, with fake torch functions."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch

from tdx import GymEnv
from tdx.foundation import accelerators
from tdx.profiling.passes import accelerator, choice
from tdx.profiling.passes.accelerator import TorchAccelerator
from tdx.profiling.passes.choice import find_accelerator
from tdx.profiling.passes.device_trace import (
    LINE_PREFIX,
    RANGE_PREFIX,
    START_RANGE,
    attribute_work,
    read_trace,
)
from tdx.profiling.passes.trace_file import stream_entries

STREAM = object()


class FakeTorch:
    """Fake of the torch functions that query a device; events are a millisecond apart."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, timed: bool = True) -> None:
        self.timed, self.log, self.now = timed, list[str](), 0.0
        # The first profiler imports the compiler, which derives classes from torch.Event.
        import_module("torch._dynamo")
        monkeypatch.setattr(accelerator, "available_device", torch.device)
        monkeypatch.setattr(torch, "Event", self.event)
        monkeypatch.setattr(TorchAccelerator, "_initialize", lambda _: self.log.append("set up"))
        stats = {"allocated": 900, "current": 300, "peak": 500}
        named = {f"allocated_bytes.all.{name}": value for name, value in stats.items()}
        named["reserved_bytes.all.current"] = 1200
        for name, value in (
            ("synchronize", None),
            ("current_stream", STREAM),
            ("memory_stats", named),
            ("reset_peak_memory_stats", None),
        ):
            monkeypatch.setattr(accelerators, name, self.answering(name, value))

    def answering(self, name: str, value: Any) -> Any:
        def answer(device: torch.device) -> Any:
            self.log.append(f"{name} {device}")
            return value

        return answer

    def event(self, *, device: torch.device, enable_timing: bool) -> FakeEvent:
        assert enable_timing
        return FakeEvent(self)


class FakeEvent:
    def __init__(self, owner: FakeTorch) -> None:
        self.owner, self.at_ms = owner, 0.0

    def record(self, stream: object) -> None:
        assert stream is STREAM
        self.owner.now += 1.0
        self.at_ms = self.owner.now

    def elapsed_time(self, later: FakeEvent) -> float:
        if not self.owner.timed:
            raise NotImplementedError("no timing here\nmore")
        return later.at_ms - self.at_ms


def test_marks_and_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeTorch(monkeypatch)
    device = TorchAccelerator("cuda:1")
    assert fake.log[0] == "set up"
    assert (device.name, device.timing_error, device.reports_syncs) == ("cuda:1", None, True)
    earlier, later = device.mark(), device.mark()
    assert device.elapsed_ns(earlier, later) == 1_000_000
    assert (device.memory(), device.reserved_bytes()) == ((900, 300, 500), 1200)
    device.release([earlier])
    assert device.mark() is earlier
    fake.log.clear()
    device.reset_peak()
    device.synchronize()
    assert fake.log == ["reset_peak_memory_stats cuda:1", "synchronize cuda:1"]


def test_missing_capabilities_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    FakeTorch(monkeypatch)
    monkeypatch.setattr(accelerators, "memory_stats", lambda device: {})
    device = TorchAccelerator("mps")
    assert (device.reports_syncs, device.reports_memory, device.reports_work) == (
        False,
        False,
        False,
    )
    assert device.missing == (
        "mps: torch does not report where the host waits for it here.",
        "mps: torch does not report its memory use here.",
        "mps: torch does not report its kernels and copies here.",
    )


def test_device_without_timing_is_reported_once(monkeypatch: pytest.MonkeyPatch) -> None:
    FakeTorch(monkeypatch, timed=False)
    devices = [torch.device("mps:0"), torch.device("cuda:0")]
    monkeypatch.setattr(choice, "list_accelerators", lambda *_: devices)
    found = find_accelerator(GymEnv("Pendulum-v1"))
    assert found.accelerator is None
    assert found.notes == (
        "cuda:0: not measured, as only one device is measured at a time: mps:0.",
        "mps:0 cannot be timed: no timing here.",
    )


def test_trace_of_torch_contains_the_parts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fake = FakeTorch(monkeypatch)
    device, path = TorchAccelerator("mps"), tmp_path / "trace.json"
    fake.log.clear()
    with device.record_trace(path):
        with torch.autograd.profiler.record_function(START_RANGE):
            pass
        for place in (0, 1, 0):
            with torch.autograd.profiler.record_function(f"{RANGE_PREFIX}{place}"):
                torch.ones(3)
        with torch.autograd.profiler.record_function(f"{LINE_PREFIX}stage.py:7"):
            pass
    events = list(read_trace(stream_entries(path)))
    assert [event.name for event in events if event.kind == "line"] == ["stage.py:7"]
    assert [event.kind for event in events].count("start") == 1
    parts = [event for event in events if event.kind == "part"]
    assert [each.name for each in parts] == [f"{RANGE_PREFIX}{place}" for place in (0, 1, 0)]
    assert all(each.duration_ns > 0 for each in parts)
    result = attribute_work(events)
    assert (set(result.parts), result.busy_ns) == ({0, 1}, 0)
    assert all(work.host_ns > 0 and not work.launches for work in result.parts.values())
    # Queued work is finished before the trace ends.
    assert fake.log == ["synchronize mps"]

"""The state of a GPU, read from a fake of NVIDIA's library."""

from __future__ import annotations

import os
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from tdx.foundation.nvml import GpuState, read_gpu

DEVICE = torch.device("cuda:1")
UUID = "4e4c2d3a-0000-1111-2222-333344445555"


class FakeNvml(ModuleType):
    """NVIDIA's library with one card; text is bytes, as in older releases."""

    NVML_CLOCK_SM, NVML_CLOCK_MEM = 1, 2

    class NVMLError(Exception):
        pass

    def __init__(self) -> None:
        super().__init__("pynvml")
        self.open = 0
        self.asked: list[str] = []
        self.processes = [
            SimpleNamespace(pid=1, usedGpuMemory=9),
            SimpleNamespace(pid=os.getpid(), usedGpuMemory=500),
        ]

    def nvmlInit(self) -> None:
        self.open += 1

    def nvmlShutdown(self) -> None:
        self.open -= 1

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:
        self.asked.append(uuid)
        return uuid

    def nvmlDeviceGetMemoryInfo(self, handle: str) -> Any:
        return SimpleNamespace(total=8000, used=700)

    def nvmlDeviceGetComputeRunningProcesses(self, handle: str) -> list[Any]:
        return self.processes

    def nvmlDeviceGetName(self, handle: str) -> bytes:
        return b"Example GPU"

    def nvmlSystemGetDriverVersion(self) -> str:
        return "570.1"

    def nvmlDeviceGetClockInfo(self, handle: str, clock: int) -> int:
        return 1500 * clock

    def nvmlDeviceGetMaxClockInfo(self, handle: str, clock: int) -> int:
        return 1980


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> FakeNvml:
    fake = FakeNvml()
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    properties = SimpleNamespace(uuid=UUID)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    return fake


def test_card_of_torch_is_found_by_its_uuid(nvml: FakeNvml) -> None:
    assert read_gpu(DEVICE) == GpuState("Example GPU", "570.1", 8000, 700, 500, 1500, 1980, 3000)
    assert (nvml.asked, nvml.open) == ([f"GPU-{UUID}"], 0)


def test_memory_of_a_process_may_be_unknown(nvml: FakeNvml) -> None:
    nvml.processes[1].usedGpuMemory = None
    state = read_gpu(DEVICE)
    assert isinstance(state, GpuState)
    assert state.process_bytes is None


@pytest.mark.parametrize("name", ["nvmlInit", "nvmlDeviceGetMemoryInfo"])
def test_error_of_the_driver_is_a_sentence(
    nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    def refuse(*_: object) -> None:
        raise nvml.NVMLError("Insufficient Permissions")

    monkeypatch.setattr(nvml, name, refuse)
    reason = "The driver does not report clocks and total memory: Insufficient Permissions."
    assert read_gpu(DEVICE) == reason
    assert nvml.open == 0


def test_missing_library_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    reason = read_gpu(DEVICE)
    assert isinstance(reason, str)
    assert reason.endswith("install tdx[gpu].")

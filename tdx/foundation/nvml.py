"""The state of an NVIDIA GPU as its driver reports it, by the optional ``nvidia-ml-py``."""

from __future__ import annotations

import os
from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class GpuState:
    """Memory and clocks of a GPU at one moment, over all processes and libraries.

    Args:
        name: Name of the card.
        driver: Version of the driver.
        total_bytes: Memory of the card.
        used_bytes: Memory in use by all processes.
        process_bytes: Memory in use by this process, with the CUDA context and libraries other than
            torch. ``None``: the driver does not report it, as in many containers.
        sm_mhz: Clock of the multiprocessors.
        max_sm_mhz: Highest clock of the multiprocessors.
        memory_mhz: Clock of the memory.
    """

    name: str
    driver: str
    total_bytes: int
    used_bytes: int
    process_bytes: int | None
    sm_mhz: int
    max_sm_mhz: int
    memory_mhz: int


def read_gpu(device: torch.device) -> GpuState | str:
    """Read the state of a GPU, or return why it cannot be read, as a sentence."""
    try:
        import pynvml as nvml
    except ImportError:
        return "The driver was not asked for clocks and total memory: install tdx[gpu]."
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        return f"The driver does not report clocks and total memory: {error}."
    try:
        # CUDA_VISIBLE_DEVICES renumbers the devices of torch, but not those of the driver.
        uuid = str(torch.cuda.get_device_properties(device).uuid)
        handle = nvml.nvmlDeviceGetHandleByUUID(uuid if uuid.startswith("GPU-") else f"GPU-{uuid}")
        memory = nvml.nvmlDeviceGetMemoryInfo(handle)
        processes = nvml.nvmlDeviceGetComputeRunningProcesses(handle)
        return GpuState(
            name=_text(nvml.nvmlDeviceGetName(handle)),
            driver=_text(nvml.nvmlSystemGetDriverVersion()),
            total_bytes=int(memory.total),
            used_bytes=int(memory.used),
            process_bytes=next(
                (
                    int(process.usedGpuMemory)
                    for process in processes
                    if process.pid == os.getpid() and process.usedGpuMemory is not None
                ),
                None,
            ),
            sm_mhz=int(nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM)),
            max_sm_mhz=int(nvml.nvmlDeviceGetMaxClockInfo(handle, nvml.NVML_CLOCK_SM)),
            memory_mhz=int(nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_MEM)),
        )
    except nvml.NVMLError as error:
        return f"The driver does not report clocks and total memory: {error}."
    finally:
        nvml.nvmlShutdown()


def _text(value: str | bytes) -> str:
    """Return text; releases before 11.5 return bytes."""
    return value.decode() if isinstance(value, bytes) else value

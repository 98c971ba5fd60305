"""The machine: hardware and versions, free memory, and a quiet environment to measure in."""

from __future__ import annotations

import gc
import platform
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import torch

from tdx import __version__
from tdx.foundation.accelerators import current_accelerator
from tdx.foundation.plugins import installed_version
from tdx.foundation.processes import total_memory, usable_cores

PACKAGES = ("torch", "tensordict", "gymnasium", "numpy")


@dataclass(frozen=True, slots=True)
class Machine:
    """A machine and the software versions on it; times of different machines are not comparable."""

    processor: str
    cores: int
    memory_bytes: int
    system: str
    python: str
    packages: dict[str, str]
    accelerators: tuple[str, ...]
    threads: int

    def differences(self, other: Machine) -> list[str]:
        """Describe each property that affects times and differs from another machine."""
        pairs = {
            "processor": (self.processor, other.processor),
            "cores": (self.cores, other.cores),
            "system": (self.system, other.system),
            "python": (self.python, other.python),
            "accelerators": (", ".join(self.accelerators), ", ".join(other.accelerators)),
            "threads": (self.threads, other.threads),
            **{
                name: (self.packages.get(name, "none"), other.packages.get(name, "none"))
                for name in sorted({*self.packages, *other.packages})
            },
        }
        return [f"{name}: {a} and {b}" for name, (a, b) in pairs.items() if a != b]


def detect_machine() -> Machine:
    """Describe the machine of this process."""
    return Machine(
        processor=_read_processor(),
        cores=usable_cores(),
        memory_bytes=total_memory() or 0,
        system=f"{platform.system()} {platform.release()}",
        python=platform.python_version(),
        packages={
            "tdx": __version__,
            **{name: installed_version(name) or "not installed" for name in PACKAGES},
        },
        accelerators=_list_accelerators(),
        threads=torch.get_num_threads(),
    )


def _read_processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _list_accelerators() -> tuple[str, ...]:
    if torch.cuda.is_available():
        count = torch.cuda.device_count()
        return tuple(torch.cuda.get_device_name(index) for index in range(count))
    found = current_accelerator()
    return () if found is None else (found.type,)


@contextmanager
def quiet_environment(threads: int | None = None) -> Iterator[None]:
    """Disable the garbage collector and set the number of torch threads in a block.

    Nothing is collected at the start, which can take longer than a short block.
    """
    collecting, before = gc.isenabled(), torch.get_num_threads()
    gc.disable()
    if threads is not None:
        torch.set_num_threads(threads)
    try:
        yield
    finally:
        if threads is not None:
            torch.set_num_threads(before)
        if collecting:
            gc.enable()


STEP_COPIES = 4
"""Copies of a step in memory: env output, chain output, chunk, and concatenated chunk."""
_OUT_OF_MEMORY_PHRASES = ("out of memory", "allocate memory", "unable to allocate", "memoryerror")


def is_out_of_memory(message: str) -> bool:
    """True if an error message reports that memory ran out."""
    return any(sign in message.casefold() for sign in _OUT_OF_MEMORY_PHRASES)


def find_free_memory(device: torch.device) -> int | None:
    """Return the free memory of a device in bytes; ``None`` if unknown."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    if device.type != "cpu":
        return None
    found = []
    group = Path("/sys/fs/cgroup")
    # The limit of a group without one is the word "max".
    with suppress(OSError, ValueError):
        used = int((group / "memory.current").read_text())
        found.append(int((group / "memory.max").read_text()) - used)
    with suppress(OSError):
        lines = Path("/proc/meminfo").read_text().splitlines()
        kibibytes = [line.split()[1] for line in lines if line.startswith("MemAvailable:")]
        found += [int(kibibyte) * 1024 for kibibyte in kibibytes]
    return min(found, default=None)


def release_memory() -> None:
    """Collect garbage and empty torch's memory cache."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()

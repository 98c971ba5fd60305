"""What a measurement was made on; times of another machine say little."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import torch

from tdx import __version__

PACKAGES = ("torch", "tensordict", "gymnasium", "numpy")


@dataclass(frozen=True, slots=True)
class Machine:
    """A machine, and what ran on it.

    Args:
        processor: its name.
        cores: how many of them this process may use.
        memory_bytes: all of it; 0 where that is not known.
        system: the operating system.
        python: the version.
        packages: versions by name.
        accelerators: the names of its devices.
        threads: how many threads torch uses for one operation.
    """

    processor: str
    cores: int
    memory_bytes: int
    system: str
    python: str
    packages: dict[str, str]
    accelerators: tuple[str, ...]
    threads: int

    def differences(self, other: Machine) -> list[str]:
        """What of it is other than in another one, in words; nothing of what does not count."""
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


def this_machine() -> Machine:
    """The machine that this process runs on."""
    return Machine(
        processor=_processor(),
        cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else _all_cores(),
        memory_bytes=_memory(),
        system=f"{platform.system()} {platform.release()}",
        python=platform.python_version(),
        packages={"tdx": __version__, **{name: _version(name) for name in PACKAGES}},
        accelerators=_accelerators(),
        threads=torch.get_num_threads(),
    )


def _all_cores() -> int:
    return os.cpu_count() or 1


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _memory() -> int:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (OSError, ValueError, AttributeError):
        return 0


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "not installed"


def _accelerators() -> tuple[str, ...]:
    if torch.cuda.is_available():
        count = torch.cuda.device_count()
        return tuple(torch.cuda.get_device_name(index) for index in range(count))
    found = torch.accelerator.current_accelerator(check_available=True)
    return () if found is None else (found.type,)

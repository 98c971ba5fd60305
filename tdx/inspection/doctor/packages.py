"""Import packages in a process of their own: one that is broken may take that process with it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

_SECONDS = 120.0
_PROBE = """
import importlib, json, sys
asked = json.loads(sys.argv[1])
sys.path[:] = asked["path"]
def tell(**facts):
    print(json.dumps(facts), file=sys.__stdout__, flush=True)
for name in asked["modules"]:
    tell(begin=name)
    try:
        module = importlib.import_module(name)
        tell(module=name, version=str(getattr(module, "__version__", "")))
    except BaseException as error:
        tell(module=name, error=f"{type(error).__name__}: {error}")
try:
    import torch
    cuda = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    mps = bool(torch.backends.mps.is_available())
    tell(devices={"cuda": cuda, "mps": mps, "threads": torch.get_num_threads(),
                  "built_for": torch.version.cuda})
except BaseException as error:
    tell(devices={"error": f"{type(error).__name__}: {error}"})
"""


@dataclass(frozen=True, slots=True)
class Imported:
    """What became of an import.

    Args:
        version: what the module calls its version; empty where it does not say.
        error: why it cannot be imported; none where it can.
    """

    version: str = ""
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Probe:
    """What the other process told.

    Args:
        modules: what became of each import.
        devices: what torch says of the devices; empty where it says nothing.
    """

    modules: dict[str, Imported] = field(default_factory=dict)
    devices: dict[str, Any] = field(default_factory=dict)


def probe(modules: Sequence[str]) -> Probe:
    """Import modules one after the other in a new process, and ask torch for devices."""
    asked = json.dumps({"modules": list(modules), "path": sys.path})
    try:
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", _PROBE, asked],
            capture_output=True,
            text=True,
            timeout=_SECONDS,
            check=False,
        )
        told, end = done.stdout, f"the import ended the process with code {done.returncode}"
    except subprocess.TimeoutExpired as error:
        told = error.stdout.decode() if isinstance(error.stdout, bytes) else error.stdout or ""
        end = f"the import took more than {_SECONDS:.0f} s"
    except OSError as error:
        told, end = "", f"no process can be started: {error.strerror}"
    return _read(told, end, modules)


def _read(told: str, end: str, modules: Sequence[str]) -> Probe:
    found = Probe()
    begun: str | None = None
    for line in told.splitlines():
        try:
            facts = json.loads(line)
        except ValueError:
            continue
        begun = facts.get("begin", begun)
        if "module" in facts:
            error = facts.get("error")
            short = " ".join(error.split()) if error else None
            found.modules[facts["module"]] = Imported(facts.get("version", ""), short)
        found.devices.update(facts.get("devices", {}))
    for name in modules:
        if name not in found.modules:
            reason = end if name == begun or not found.modules else f"not tried: {end}"
            found.modules[name] = Imported(error=reason)
    return found

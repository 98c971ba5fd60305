"""What torch's profiler writes of a device: kernels, copies, and what the host did for them."""

from __future__ import annotations

import json
from typing import Literal, NamedTuple

from tdx.profiling.passes.ranges import part_place

TraceKind = Literal["part", "launch", "kernel", "copy", "fill"]
_KINDS: dict[str, TraceKind] = {
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
        kind = _KINDS.get(each.get("cat", ""))
        if kind is None or each.get("ph") != "X":
            continue
        if kind == "part" and part_place(each["name"]) < 0:
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

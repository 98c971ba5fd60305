"""Compares ``tdx profile --trace`` with HolisticTraceAnalysis, which must be installed.

    python tests/benchmarks/trace_reference.py FOLDER

prints a row for each trace and figure in a folder, such as ``tests/data`` of its repository. Both
read the same events, so that the figures count the same work:

- Without work whose launch is not in the trace, which HolisticTraceAnalysis leaves out.
- Without waits of streams for events, and operators of the host, which it takes for kernels if they
  have a stream.
- With times since the first event: its floats of µs since 1970 have steps of 0.25 µs.

Its launches are those by `cudaLaunchKernel` and `cudaLaunchKernelExC`; it counts fills as copies.
"""

from __future__ import annotations

import gzip
import json
import logging
import os
import sys
import tempfile
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

# Otherwise it rounds times to whole µs.
os.environ["HTA_DISABLE_NS_ROUNDING"] = "1"
logging.disable(logging.CRITICAL)

from hta.trace_analysis import TraceAnalysis  # type: ignore[import-not-found]  # noqa: E402

from tdx.profiling.passes.trace_file import TraceSummary, summarize_trace  # noqa: E402

WORK = ("kernel", "gpu_memcpy", "gpu_memset")
LAUNCHES = ("cudaLaunchKernel", "cudaLaunchKernelExC")
CAUSES = {"host": "host_wait", "kernel": "kernel_wait", "other": "other"}
Entry = dict[str, Any]


def read_common_events(path: Path) -> list[Entry]:
    """Return the events that both count."""
    with (gzip.open if path.suffix == ".gz" else open)(path, "rt") as file:
        document = json.load(file, parse_float=Decimal, strict=False)
    entries = document.get("traceEvents", ()) if isinstance(document, dict) else ()
    entries = [entry for entry in entries if entry.get("ph") == "X"]
    launched = {_link(entry) for entry in entries if entry.get("cat") in RUNTIME}
    first = min((entry["ts"] for entry in entries), default=0)
    common = []
    for entry in entries:
        if entry["cat"] in WORK:
            if _link(entry) not in launched:
                continue
        elif entry["cat"] in ("cuda_sync", "cpu_op") and "stream" in entry.get("args", {}):
            continue
        common.append({**entry, "ts": entry["ts"] - first})
    return common


RUNTIME = ("cuda_runtime", "cuda_driver")


def _link(entry: Entry) -> Any:
    return entry.get("args", {}).get("correlation")


def write(path: Path, entries: list[Entry]) -> str:
    path.write_text(json.dumps({"traceEvents": entries}, default=float))
    return str(path)


def compare(entries: list[Entry], folder: Path) -> Iterator[tuple[str, float, float]]:
    """Yield the name of each figure, and its values by HolisticTraceAnalysis and tdx."""
    file = write(folder / "common.json", entries)
    analysis = TraceAnalysis(trace_files={0: file}, include_last_profiler_step=True)
    summary = summarize_trace(file)
    _, kernels = analysis.get_gpu_kernel_breakdown(
        visualize=False, duration_ratio=1.0, num_kernels=10**9, include_memory_kernels=True
    )
    by_type = kernels.groupby("kernel_type")["sum (us)"].sum()
    fills = float(sum(entry["dur"] for entry in entries if entry["cat"] == "gpu_memset"))
    copies = float(by_type.get("MEMORY", 0))
    total = sum(part.kernel_us for part in summary.ranges)
    yield "kernels, µs", float(by_type.sum()) - copies, total - fills
    yield "copies and fills, µs", copies, sum(part.copy_us for part in summary.ranges) + fills
    temporal = analysis.get_temporal_breakdown(visualize=False).iloc[0]
    busy = float(temporal["kernel_time(us)"] - temporal["idle_time(us)"])
    yield "busy, µs", busy, summary.busy_us
    idle, _ = analysis.get_idle_time_breakdown(
        ranks=[0], consecutive_kernel_delay=30, visualize=False
    )
    for stream in summary.streams:
        for cause, category in CAUSES.items():
            rows = idle[(idle.stream == stream.stream) & (idle.idle_category == category)]
            expected, actual = float(rows.idle_time.sum()), getattr(stream, f"idle_{cause}_us")
            yield f"stream {stream.stream} idle, {cause}, µs", expected, actual
    stats = analysis.get_cuda_kernel_launch_stats(
        ranks=[0], include_memory_events=False, visualize=False
    )[0]
    names = {_link(entry): entry["name"] for entry in entries if entry["cat"] in RUNTIME}
    launched = [
        entry for entry in entries if entry["cat"] != "kernel" or names[_link(entry)] in LAUNCHES
    ]
    counted: TraceSummary = summarize_trace(write(folder / "launched.json", launched))
    delay = sum(part.delay_us * part.kernels for part in counted.ranges)
    yield "launches", len(stats), sum(part.kernels for part in counted.ranges)
    yield "launch delay, µs", float(stats["launch_delay"].sum()), delay


def main(folder: Path) -> None:
    print("| trace | figure | HolisticTraceAnalysis | tdx | difference |")
    print("| --- | --- | --- | --- | --- |")
    with tempfile.TemporaryDirectory() as temporary:
        for path in sorted(folder.rglob("*.json*")):
            entries = read_common_events(path)
            if not any(entry["cat"] in WORK for entry in entries):
                continue
            for figure, expected, actual in compare(entries, Path(temporary)):
                difference = abs(actual - expected) / max(abs(expected), 0.01)
                values = f"{expected:,.2f} | {actual:,.2f} | {difference:.3%}"
                print(f"| {path.relative_to(folder)} | {figure} | {values} |")


if __name__ == "__main__":
    main(Path(sys.argv[1]))

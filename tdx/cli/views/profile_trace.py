"""What the ranges of a recorded trace cost on the device and on the host.

Reading a trace needs no torch: its import takes more memory than a trace of 1 GB.
"""

from __future__ import annotations

import math

from tdx.cli.views import Block, Cell, Column, Heading, Table, View, fact, micros
from tdx.foundation.text import format_bytes
from tdx.profiling.passes.trace_file import TraceSummary

_MAX_WAITS = 10


def trace_view(trace: TraceSummary) -> View:
    """Lay out the work of the device in a recorded trace by range, its waits and its streams."""

    def blocks() -> list[Block]:
        shown: list[Block] = [Heading(trace.source, "times in µs", level=1)]
        if not trace.devices:
            rows = [
                [Cell(part.label, "name"), Cell(f"{part.calls:,}"), Cell(micros(part.host_us))]
                for part in trace.ranges
            ]
            shown.append(_table(("range", "calls", "host"), rows))
            shown.append(fact("device", "the trace has no work of a device"))
            return shown
        rows = [
            [
                Cell(part.label, "name"),
                Cell(micros(part.host_us or None)),
                Cell(micros(part.busy_us)),
                Cell(part.bound_by),
                Cell(f"{part.kernels:,}" if part.kernels else ""),
                Cell(micros(part.copy_us or None)),
                Cell(micros(part.wait_us or None), "bad" if part.wait_us else ""),
                Cell(micros(part.idle_host_us or None)),
                Cell(micros(part.idle_kernel_us or None)),
                Cell(micros(part.idle_other_us or None)),
                Cell(micros(part.delay_us or None)),
                Cell(_bytes(part.to_device_bytes)),
                Cell(_bytes(part.to_host_bytes)),
            ]
            for part in trace.ranges
        ]
        titles = (
            *("range", "host", "busy", "bound by", "kernels", "copies", "waits"),
            *("host late", "next kernel", "other idle", "delay", "bytes in", "bytes out"),
        )
        optional = ("bytes out", "bytes in", "next kernel", "other idle", "delay", "copies")
        shown.append(_table(titles, rows, optional))
        busy = trace.busy_us / trace.traced_us if trace.traced_us else 0.0
        shown.append(fact("busy", f"{busy:.1%} of {micros(trace.traced_us)} µs"))
        text = f"{trace.unattributed:.1%} of the busy time is in no range"
        shown.append(fact("unattributed", text))
        if trace.devices > 1:
            shown.append(fact("devices", f"{trace.devices}, taken as one that is idle if all are"))
        if trace.waits:
            count = len(trace.waits)
            about = f"the longest {_MAX_WAITS} of {count}" if count > _MAX_WAITS else ""
            shown.append(Heading("waits of the host", about))
            rows = [
                [
                    Cell(wait.label, "name"),
                    Cell(f"{wait.count:,}"),
                    Cell(micros(wait.wait_us), "bad"),
                    Cell(wait.call),
                    Cell(wait.line, "dim"),
                ]
                for wait in trace.waits[:_MAX_WAITS]
            ]
            shown.append(_table(("range", "n", "time", "call", "line"), rows))
        if len(trace.streams) > 1:
            shown.append(Heading("streams", "between the first and the last work of each"))
            rows = [
                [
                    Cell(f"{each.device}:{each.stream}" if trace.devices > 1 else str(each.stream)),
                    Cell(micros(each.busy_us)),
                    Cell(micros(each.idle_host_us or None)),
                    Cell(micros(each.idle_kernel_us or None)),
                    Cell(micros(each.idle_other_us or None)),
                ]
                for each in trace.streams
            ]
            shown.append(_table(("stream", "busy", "host late", "next kernel", "other idle"), rows))
        return shown

    return View("profile_trace", trace, blocks, lambda: trace.ranges)


def _bytes(count: int) -> str:
    return format_bytes(count) if count else ""


def _table(
    titles: tuple[str, ...], rows: list[list[Cell]], optional: tuple[str, ...] = ()
) -> Table:
    """Return a table in which a user's names are wrapped if they are long, and no number is."""
    texts = ("range", "bound by", "call", "line")
    columns = [
        Column(
            *(title, title not in texts, title not in texts),
            optional.index(title) if title in optional else math.inf,
        )
        for title in titles
    ]
    return Table(columns, rows)

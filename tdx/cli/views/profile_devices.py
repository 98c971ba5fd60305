"""What stages do to an accelerator, counted on a simulated one."""

from __future__ import annotations

from tdx.cli.views import Block, Cell, Heading, View, dim, fact
from tdx.cli.views.profile_table import number_table
from tdx.foundation.text import count_text, format_bytes
from tdx.stacks.device_calls import DeviceCalls

_COPIES = {"wait": "waits", "to device": "copy to the device", "to host": "copy to the host"}
_LIMITS = (
    "Counted on a simulated device, so there are no times. A launch is an operator: kernels may be "
    "more."
)


def device_calls_view(calls: DeviceCalls) -> View:
    """Lay out launches, copies and waits by stage, and the lines that copy or wait."""

    def blocks() -> list[Block]:
        envs = f" of {calls.envs} envs" if calls.envs > 1 else ""
        about = f"per step{envs}, over {count_text(calls.steps, 'step')}"
        titles = ("part", "launches", "to device", "to host", "waits")
        rows = [
            [
                Cell(part.label, "name"),
                Cell(_count(part.launches)),
                Cell(_bytes(part.to_device_bytes)),
                Cell(_bytes(part.to_host_bytes)),
                Cell(_count(part.waits), "bad" if part.waits >= 0.5 else ""),
            ]
            for part in calls.parts
        ]
        shown: list[Block] = [Heading(calls.subject, about, level=1)]
        shown.append(number_table(titles, rows, ("part",), ("to host", "to device")))
        if calls.lines:
            shown.append(Heading("lines that copy or wait", "times per step"))
            cells = [
                [
                    Cell(line.part, "name"),
                    Cell(_count(line.per_step)),
                    Cell(_COPIES[line.kind], "bad" if line.kind == "wait" else ""),
                    Cell(line.call),
                    Cell(line.location, "dim"),
                ]
                for line in calls.lines
            ]
            shown.append(
                number_table(
                    ("part", "n", "what", "call", "line"),
                    cells,
                    ("part", "what", "call", "line"),
                    (),
                )
            )
        if calls.error is not None:
            shown.append(fact("stopped", calls.error, "bad", title_style="bad"))
        if calls.setup_waits:
            text = f"{count_text(calls.setup_waits, 'wait')} before the first counted step"
            shown.append(fact("set-up", text))
        shown += [fact("note", note) for note in calls.notes]
        shown.append(dim(_LIMITS))
        return shown

    return View("profile_devices", calls, blocks, lambda: calls.lines)


def _count(value: float) -> str:
    return "" if not value else f"{value:.3g}"


def _bytes(value: float) -> str:
    return "" if not value else format_bytes(round(value) or 1)

"""TDX70x: what a chain does to an accelerator, counted on a simulated one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from tdx.inspection.lint.rule import Violation, device_rule

if TYPE_CHECKING:
    from tdx.inspection.lint.context import DeviceContext
    from tdx.stacks.device_calls import DeviceLine

_WAITS = """
from tdx import Transform


class ClipLarge(Transform):
    def _apply_transform(self, value):
        if value.abs().max() > 5:  # the host waits for the device
            value = value.clamp(-5, 5)
        return value


class Clip(Transform):
    def _apply_transform(self, value):
        return value.clamp(-5, 5)
"""
_COPIES = """
import torch

from tdx import Transform


class Weigh(Transform):
    def _apply_transform(self, value):
        return value * torch.tensor([0.5, 0.5, 1.0]).to(value.device, non_blocking=True)


class WeighOnce(Transform):
    weights = None

    def _apply_transform(self, value):
        if self.weights is None:
            self.weights = torch.tensor([0.5, 0.5, 1.0], device=value.device)
        return value * self.weights
"""
_MIXES = """
import torch

from tdx import Transform


class Fixed(Transform):
    weights = torch.tensor([0.5, 0.5, 1.0])

    def _apply_transform(self, value):
        return value * self.weights


class Moved(Fixed):
    def _apply_transform(self, value):
        self.weights = self.weights.to(value.device)
        return value * self.weights
"""
_KEYS = """(in_keys=["observation"])"""
_NEXT_STEPS = {
    "indexing with a mask": "use torch.where or masked_fill, whose result has a fixed shape",
    "assignment to a mask": "use torch.where",
    "assignment of a host value to indices": "use index_fill_, or assign a tensor of the device",
    "an index on the host": "create the index on the device, once",
    "nonzero": "use torch.where with three arguments",
}
_READ = "keep the value on the device: torch.where and clamp need no decision on the host"


def _named(line: DeviceLine) -> str:
    return f"{line.call} in {line.location}"


@device_rule(
    "TDX701",
    "host waits for the accelerator in every step",
    "warning",
    why="""
    A line of the stage needs a value, or a shape that depends on values: `item()`, `if` on a
    tensor, indexing with a mask, `nonzero`, `cpu()`. The host waits there until the
    accelerator has finished everything in its queue, and launches nothing meanwhile. Small chains
    then take a multiple of their time.

    The stages ran on a simulated device, which names the lines and measures no time.
    """,
    python=_WAITS,
    wrong=f"tdx/Pendulum -t 'my_code:ClipLarge{_KEYS}'",
    right=f"tdx/Pendulum -t 'my_code:Clip{_KEYS}'",
)
def accelerator_wait(context: DeviceContext) -> Iterator[Violation]:
    """Find stages that make the host wait in most steps."""
    for index, lines in context.lines("wait"):
        line = lines[0]
        times = sum(line.per_step for line in lines)
        also = f", and {len(lines) - 1} more" if len(lines) > 1 else ""
        message = f"the host waits {times:.3g} times per step: {_named(line)}{also}"
        yield Violation(message, _NEXT_STEPS.get(line.call, _READ), index)


@device_rule(
    "TDX702",
    "stage copies between host and accelerator in every step",
    "suggestion",
    why="""
    The stage moves data to or from the accelerator in each step without waiting for it. Constants
    can be moved once, and the copy of data that changes belongs to one place, such as a
    DeviceCastTransform.
    """,
    python=_COPIES,
    wrong=f"tdx/Pendulum -t 'my_code:Weigh{_KEYS}'",
    right=f"tdx/Pendulum -t 'my_code:WeighOnce{_KEYS}'",
)
def accelerator_copy(context: DeviceContext) -> Iterator[Violation]:
    """Find stages that copy in most steps, and for which the host does not wait."""
    waiting = {index for index, _ in context.lines("wait")}
    for index, lines in context.lines("to device", "to host"):
        if index in waiting or context.names[index] == "DeviceCastTransform":
            continue
        size = sum(line.bytes_per_step for line in lines)
        message = f"it copies {size:,.0f} bytes in each step: {_named(lines[0])}"
        yield Violation(message, "move constants once, when the stage is built", index)


@device_rule(
    "TDX703",
    "chain fails on an accelerator",
    "error",
    why="""
    On the host the chain runs; with tensors on an accelerator it raises an error. Usually a
    constant or a statistic of the stage stays on the host, or the stage calls NumPy. Keep tensors
    of a transform in buffers, which move with it, or create them on the device of the value.
    """,
    python=_MIXES,
    wrong=f"tdx/Pendulum -t 'my_code:Fixed{_KEYS}'",
    right=f"tdx/Pendulum -t 'my_code:Moved{_KEYS}'",
)
def accelerator_error(context: DeviceContext) -> Iterator[Violation]:
    """Report the error that ended the rollout on the device."""
    calls = context.calls
    if calls.error is None:
        return
    stage = None if calls.error_stage is None else calls.error_stage - context.first
    is_own = stage is not None and 0 <= stage < len(context.names)
    hint = "move the tensors that it uses to the device of the value"
    yield Violation(calls.error, hint, stage if is_own else None)

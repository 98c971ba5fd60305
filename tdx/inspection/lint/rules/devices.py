"""TDX70x: what a chain does to an accelerator, counted on a simulated one."""

from __future__ import annotations

import linecache
from collections.abc import Iterator
from typing import TYPE_CHECKING

from tdx.inspection.lint.rule import Violation, remove_stage, rule

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
_READ = "keep the tensor: torch.where and clamp need no decision on the host"
_LOGGED = "keep the tensor, and read it once per rollout"
_CONSTANT = "create it once, as a buffer of the transform (register_buffer), which moves with it"
_NEXT_STEPS = {
    "indexing with a mask": "use torch.where or masked_fill, whose result has a fixed shape",
    "assignment to a mask": "use torch.where",
    "assignment to an index": "assign to a slice, or use index_fill_",
    "assignment of a host value to indices": "use index_fill_, or assign a tensor of the device",
    "an index on the host": "create the index on the device, once",
    "a tensor as an index": "use gather or index_select, which take the tensor",
    "a tensor as a number": "take the number from a shape, or compute with the tensor instead",
    "where with a tensor of the host": "pass a number of Python, or a tensor of the device",
    "masked_fill": "use torch.where, which takes the tensor",
    "masked_fill_": "use torch.where, which takes the tensor",
    "save()": "save once per rollout",
    "nonzero": "use torch.where with three arguments",
    "item()": _LOGGED,
    "float(tensor)": _LOGGED,
    "int(tensor)": _LOGGED,
    "tolist()": _LOGGED,
    "print or format of a tensor": _LOGGED,
    "tensor()": _CONSTANT,
    "tensor() of a list of tensors": "use torch.stack, which reads no number",
    "as_tensor()": _CONSTANT,
    "to()": _CONSTANT,
    "cpu()": "move the data once per rollout, after the chain",
    "numpy(force=True)": "move the data once per rollout, after the chain",
    "one_hot without num_classes": "pass num_classes",
    "repeat_interleave": "pass output_size",
    "multinomial": "compare torch.rand with the cumulative sums of the probabilities",
}
_BY_DESIGN = {
    "ConditionalPolicySwitch": "it steps the env again where its condition holds: train against an "
    "opponent that is part of the env",
    "DeviceCastTransform": "place the env on the device, or move this stage after those that "
    "reduce the data",
    "FiniteTensorDictCheck": "it reads whether all values are finite: check stored rollouts "
    "instead, FiniteTensorDictCheck()(rollout)",
    "FrameSkipTransform": "it reads whether an episode ended: use the frame skip of the env",
    "NoopResetEnv": "it reads whether an episode ended: use the no-op resets of the env",
    "VideoRecorder": "frames are written by the host: record in an evaluation",
}
"""What else to do where a transform of tdx waits because of what it is for."""

_SHOWN = 3
"""Number of further lines that a finding names."""


def _named(line: DeviceLine) -> str:
    return f"{line.call} in {line.location}"


def _source_of(line: DeviceLine) -> str:
    """Return a line of code as it stands in its file; empty if that is not found."""
    file, _, number = line.location.rpartition(":")
    return linecache.getline(file, int(number)).strip() if number.isdecimal() else ""


@rule(
    "TDX701",
    "host waits for the accelerator in every step",
    "warning",
    subject="device",
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
    for index, line, message, is_by_design in _describe_waits(context):
        if not is_by_design:
            hint = _NEXT_STEPS.get(line.call, _READ)
            source = _source_of(line)
            hint = f"`{source}`: {hint}" if source else hint
            yield Violation(message, hint, index, location=line.location)


def _describe_waits(context: DeviceContext) -> Iterator[tuple[int, DeviceLine, str, bool]]:
    """Yield stages that wait: index, first line, message, and whether it is what they are for."""
    for index, lines in context.lines("wait"):
        line, *others = lines
        times = sum(line.per_step for line in lines)
        also = f"; also {', '.join(map(_named, others[:_SHOWN]))}" if others else ""
        more = f" and {len(others) - _SHOWN} more" if len(others) > _SHOWN else ""
        often = "once" if f"{times:.3g}" == "1" else f"{times:.3g} times"
        message = f"the host waits {often} per step: {_named(line)}{also}{more}"
        is_own = "tdx/transforms/" in line.location
        yield index, line, message, is_own and context.names[index] in _BY_DESIGN


@rule(
    "TDX702",
    "stage copies between host and accelerator in every step",
    "suggestion",
    subject="device",
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
        hint = "move constants once, when the stage is built"
        yield Violation(message, hint, index, location=lines[0].location)


@rule(
    "TDX703",
    "chain fails on an accelerator",
    "error",
    subject="device",
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


@rule(
    "TDX704",
    "stage waits for the accelerator because of what it is for",
    "suggestion",
    subject="device",
    why="""
    The transform cannot do its work without a value or a copy on the host: it decides whether to
    raise an error or to step the env again, moves data, or writes frames. That is no mistake, but
    the host waits in every step; the help says what does the same at a lower cost.
    """,
    wrong="tdx/Pendulum -t FiniteTensorDictCheck",
    right="tdx/Pendulum",
)
def accelerator_wait_by_design(context: DeviceContext) -> Iterator[Violation]:
    """Find transforms that make the host wait in most steps because of what they are for."""
    for index, _, message, is_by_design in _describe_waits(context):
        if is_by_design:
            name, fix = context.names[index], None
            if name == "FiniteTensorDictCheck" and context.configs:
                # Not safe: then nothing stops at a value that is not finite.
                fix = remove_stage(index, context.configs[index])
            yield Violation(message, _BY_DESIGN[name], index, fix=fix)

"""Statistics of the values that stages write, and their spec violations."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from tdx.foundation.keys import NestedKey
from tdx.foundation.serialization import Entries, Entry, Result, key_entry, keys_entry
from tdx.specs.leaf import LeafSpec

if TYPE_CHECKING:
    from torch import Tensor

    from tdx.specs import TensorSpec

Phase = Literal["reset", "step"]
Kind = Literal["env", "stage", "policy", "given", "kept"]


@dataclass(frozen=True, slots=True)
class ValueStats(Result):
    """Statistics of one key.

    Args:
        key: The key.
        version: Version of the key, such as ``"reward@1"``.
        shape: Shape with the batch dims; -1 for a dim that differs between steps or rows.
        dtype: Such as ``"float32"``; the class name for data that is not a tensor.
        device: Such as ``"cuda:0"``.
        present: Number of resets or steps with the key. The statistics cover all of them, whether
            the stage changed the value or passed it on.
        changed: Number of them in which the stage changed the value, or added the key; ``None`` for
            the env, the policy and the input.
        elements: Number of elements in all steps.
        minimum: Minimum without NaN; ``None`` without numbers.
        mean: Mean of the finite elements.
        maximum: Maximum without NaN.
        nans: Number of NaN.
        outside: Share of the elements outside the spec, from 0 to 1. ``None`` without a spec, or if
            the spec has another shape or dtype.
        spec: Spec of the key at this stage; ``None`` if it is undeclared.
        violations: Kinds of spec violations, such as ``"bounds"``.
    """

    json_entries: ClassVar[Entries] = (
        *("version", key_entry("key"), "shape", "dtype", "device", "present", "changed"),
        *("elements", Entry("min", "minimum"), "mean", Entry("max", "maximum"), "nans", "outside"),
        *("violations", "spec"),
    )

    key: NestedKey
    version: str
    shape: tuple[int, ...]
    dtype: str
    device: str
    present: int
    changed: int | None
    elements: int
    minimum: float | None
    mean: float | None
    maximum: float | None
    nans: int
    outside: float | None
    spec: LeafSpec | None
    violations: tuple[str, ...]


class NumberSummary:
    """Statistics of a tensor ``[*B, ...]`` or other data; a list of rows that differ in shape."""

    def __init__(self, value: object) -> None:
        from torch import Tensor

        self.shape: tuple[int, ...] = ()
        self.dtypes: dict[str, None] = {}
        self.device = ""
        self.elements = self.nans = self.finite = 0
        self.sum, self.minimum, self.maximum = 0.0, math.inf, -math.inf
        rows = value if isinstance(value, list) else [value]
        for position, row in enumerate(rows):
            shape = tuple(row.shape) if hasattr(row, "shape") else ()
            shape = (len(rows), *shape) if isinstance(value, list) else shape
            self.shape = _merge_shapes(self.shape, shape) if position else shape
            if isinstance(row, Tensor):
                self.dtypes[str(row.dtype).removeprefix("torch.")] = None
                self.device = str(row.device)
                self._add(row.detach())
            else:
                self.dtypes[type(row).__name__] = None

    def _add(self, tensor: Tensor) -> None:
        import torch

        self.elements += tensor.numel()
        if tensor.numel() == 0 or tensor.is_complex() or tensor.device.type == "meta":
            return
        numbers = tensor.reshape(-1)
        if numbers.dtype is torch.bool:
            numbers = numbers.byte()
        elif numbers.dtype in (torch.uint16, torch.uint32, torch.uint64):
            # torch has no minimum of these.
            numbers = numbers.double()
        low, high = (extreme.item() for extreme in torch.aminmax(numbers))
        if -math.inf < low and high < math.inf:
            # NaN would be the minimum: all numbers are finite.
            self.minimum, self.maximum = min(self.minimum, low), max(self.maximum, high)
            self.sum += numbers.sum(dtype=torch.float64).item()
            self.finite += numbers.numel()
            return
        if numbers.is_floating_point():
            nan = numbers.isnan()
            self.nans += int(nan.sum())
            numbers = numbers[~nan]
        if numbers.numel() == 0:
            return
        low, high = numbers.min().item(), numbers.max().item()
        self.minimum, self.maximum = min(self.minimum, low), max(self.maximum, high)
        if numbers.is_floating_point():
            numbers = numbers[numbers.isfinite()]
        self.sum += numbers.double().sum().item()
        self.finite += numbers.numel()

    @property
    def mean(self) -> float | None:
        """Mean of the finite numbers; ``None`` without any."""
        return self.sum / self.finite if self.finite else None

    @property
    def extremes(self) -> tuple[float, float] | tuple[None, None]:
        """Minimum and maximum without NaN; ``None`` without numbers."""
        return (self.minimum, self.maximum) if self.minimum <= self.maximum else (None, None)


class RunningStats:
    """Accumulates the statistics of one key after one stage over the steps."""

    def __init__(self, key: NestedKey, leaf: TensorSpec | None) -> None:
        self.key, self.leaf = key, leaf
        self.present = self.changed = 0
        self.violations: dict[str, None] = {}
        self._numbers = NumberSummary([])
        self._outside: int | None = None if leaf is None else 0

    def add(
        self, numbers: NumberSummary, outside: int | None = None, *, is_changed: bool = True
    ) -> None:
        """Add a value.

        ``outside`` is the number of elements outside the spec; ``None`` if they do not compare.
        """
        total = self._numbers
        total.shape = _merge_shapes(total.shape, numbers.shape) if self.present else numbers.shape
        self.present += 1
        self.changed += is_changed
        total.dtypes.update(numbers.dtypes)
        total.device = numbers.device or total.device
        total.elements += numbers.elements
        total.nans += numbers.nans
        total.finite += numbers.finite
        total.sum += numbers.sum
        total.minimum = min(total.minimum, numbers.minimum)
        total.maximum = max(total.maximum, numbers.maximum)
        if self._outside is not None:
            self._outside = None if outside is None else self._outside + outside

    def result(self, version: str, spec: LeafSpec | None, *, is_stage: bool = True) -> ValueStats:
        """Return the statistics.

        The env, the policy and the input are no stages: they change nothing.
        """
        total = self._numbers
        minimum, maximum = total.extremes
        return ValueStats(
            key=self.key,
            version=version,
            shape=total.shape,
            dtype=" or ".join(total.dtypes),
            device=total.device,
            present=self.present,
            changed=self.changed if is_stage else None,
            elements=total.elements,
            minimum=minimum,
            mean=total.mean,
            maximum=maximum,
            nans=total.nans,
            outside=None if self._outside is None else self._outside / max(total.elements, 1),
            spec=spec,
            violations=tuple(self.violations),
        )


def _merge_shapes(one: tuple[int, ...], other: tuple[int, ...]) -> tuple[int, ...]:
    if len(one) != len(other):
        return one
    return tuple(a if a == b else -1 for a, b in zip(one, other, strict=True))


def count_outside(leaf: TensorSpec, value: object) -> int | None:
    """Count the elements outside a spec; ``None`` if shape or dtype differ, or without a tensor."""
    from tdx.specs.violations import elements_outside

    outside = elements_outside(leaf, value)
    return None if outside is None else int(outside.sum())


@dataclass(frozen=True, slots=True)
class StageValues(Result):
    """Values that a stage wrote in one direction, over all resets or steps of a phase.

    Args:
        kind: ``env`` for the base env, ``stage``, ``policy``; ``kept`` for values that a partial
            reset restores in the rows that it does not reset.
        index: Index in the chain, from 0; ``None`` if it is not a stage.
        name: Class name.
        direction: ``forward`` or ``inverse``.
        values: Statistics of the keys that it wrote in one of them, over all of them.
        dropped: Keys that it removed.
        undeclared: Keys that it wrote without declaring them as out-keys.
    """

    json_entries: ClassVar[Entries] = (
        *("kind", Entry("stage", "index"), "name", "direction", "values"),
        *(keys_entry("dropped"), keys_entry("undeclared")),
    )

    kind: Kind
    index: int | None
    name: str
    direction: Literal["forward", "inverse"]
    values: tuple[ValueStats, ...]
    dropped: tuple[NestedKey, ...]
    undeclared: tuple[NestedKey, ...]

    @property
    def place(self) -> str:
        """Name in messages: ``0 StepCounter``, ``env``."""
        return f"{self.index} {self.name}" if self.kind == "stage" else self.kind


@dataclass(frozen=True, slots=True)
class PhaseValues(Result):
    """Values of the resets, of the steps, or of a single one.

    Args:
        phase: Reset or step.
        first: First step of the phase, from 0; for a reset, the step that follows it.
        count: Number of resets or steps.
        stages: Values of each stage, in execution order.
    """

    phase: Phase
    first: int
    count: int
    stages: tuple[StageValues, ...]


@dataclass(frozen=True, slots=True)
class ValueViolation(Result):
    """Spec violation by a stage.

    Args:
        phase: Phase of the first occurrence.
        step: Step of the first occurrence, from 0.
        count: Number of resets and steps in which it occurred.
        kind: Whether a stage, the env or the policy violates the spec.
        index: Index of the stage; ``None`` if it is not a stage.
        name: Its class name.
        key: The key; ``None`` for the whole TensorDict.
        code: Kind of violation, such as ``"bounds"``.
        message: Actual and declared value.
        hint: How to fix it.
        spec: Spec of the key, if it has one.
    """

    json_entries: ClassVar[Entries] = (
        *("phase", "step", "count", "kind", Entry("stage", "index"), "name", key_entry("key")),
        *(Entry("violation", "code"), "message", "hint", "spec"),
    )

    phase: Phase
    step: int
    count: int
    kind: Kind
    index: int | None
    name: str
    key: NestedKey | None
    code: str
    message: str
    hint: str | None
    spec: LeafSpec | None

"""Numbers about the values of one key, gathered over several steps."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tdx.inspection.leaf import LeafSpec
from tdx.keys import NestedKey, format_key

if TYPE_CHECKING:
    from torch import Tensor

    from tdx.specs import TensorSpec


@dataclass(frozen=True, slots=True)
class ValueStats:
    """What a stage wrote under one key.

    Args:
        key: the key.
        version: which version of the key it is, such as ``"reward@1"``.
        shape: its shape, with the batch dims; -1 for a dim that differs between steps or rows.
        dtype: such as ``"float32"``; the class name where it is no tensor.
        device: such as ``"cuda:0"``.
        elements: how many numbers were looked at, in all steps together.
        minimum: the smallest of them, nan aside; none where there is none.
        mean: their mean, nan and infinities aside.
        maximum: the largest, nan aside.
        nans: how many of them are nan.
        outside: the share of them that the spec does not let through, from 0 to 1; none where
            no spec speaks of it or it is of another shape or dtype.
        spec: what is declared of the key at this place; none where nothing is.
        lies: what kinds of promises are broken, such as ``"bounds"``.
    """

    key: NestedKey
    version: str
    shape: tuple[int, ...]
    dtype: str
    device: str
    elements: int
    minimum: float | None
    mean: float | None
    maximum: float | None
    nans: int
    outside: float | None
    spec: LeafSpec | None
    lies: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """As plain data that JSON can hold: an infinity is the string ``"inf"``."""
        return {
            "version": self.version,
            "key": format_key(self.key),
            "shape": list(self.shape),
            "dtype": self.dtype,
            "device": self.device,
            "elements": self.elements,
            "min": plain_number(self.minimum),
            "mean": plain_number(self.mean),
            "max": plain_number(self.maximum),
            "nans": self.nans,
            "outside": self.outside,
            "lies": list(self.lies),
            "spec": None if self.spec is None else self.spec.to_dict(),
        }


def plain_number(number: float | None) -> float | str | None:
    """A number as JSON can hold it."""
    if number is None or math.isfinite(number):
        return number
    return "inf" if number > 0 else "-inf"


class RunningStats:
    """Gathers the values of one key, step after step.

    Args:
        key: the key.
        version: which version of the key it is.
        leaf: the spec at this place, where there is one.
        spec: the same as plain data.
    """

    def __init__(
        self, key: NestedKey, version: str, leaf: TensorSpec | None, spec: LeafSpec | None
    ) -> None:
        self._key, self._version, self._leaf, self._spec = key, version, leaf, spec
        self._shape: tuple[int, ...] | None = None
        self._dtypes: dict[str, None] = {}
        self._device = ""
        self._elements = self._nans = self._finite = 0
        self._sum, self._least, self._most = 0.0, math.inf, -math.inf
        self._outside: float | None = None if leaf is None else 0
        self._lies: dict[str, None] = {}

    def blame(self, lie: str) -> None:
        """Note a promise that was broken."""
        self._lies[lie] = None

    def add(self, value: Any) -> None:
        """Look at one more value, ``[*B, ...]``; a list of rows where they differ in shape."""
        from torch import Tensor

        rows = value if isinstance(value, list) else [value]
        for row in rows:
            shape = tuple(row.shape) if hasattr(row, "shape") else ()
            shape = (len(rows), *shape) if isinstance(value, list) else shape
            self._shape = shape if self._shape is None else _common(self._shape, shape)
            if isinstance(row, Tensor):
                self._dtypes[str(row.dtype).removeprefix("torch.")] = None
                self._device = str(row.device)
                self._add_numbers(row.detach())
            else:
                self._dtypes[type(row).__name__] = None
                self._outside = None
        if self._outside is not None and self._leaf is not None:
            share = None if isinstance(value, list) else numbers_outside(self._leaf, value)
            self._outside = None if share is None else self._outside + share

    def _add_numbers(self, tensor: Tensor) -> None:
        import torch

        self._elements += tensor.numel()
        if tensor.numel() == 0 or tensor.is_complex() or tensor.device.type == "meta":
            return
        numbers = tensor.reshape(-1)
        if numbers.is_floating_point():
            nan = numbers.isnan()
            self._nans += int(nan.sum())
            numbers = numbers[~nan]
        if numbers.numel() == 0:
            return
        if numbers.dtype is torch.bool:
            numbers = numbers.byte()
        low, high = numbers.min().item(), numbers.max().item()
        self._least, self._most = min(self._least, low), max(self._most, high)
        if numbers.is_floating_point():
            numbers = numbers[numbers.isfinite()]
        self._sum += numbers.double().sum().item()
        self._finite += numbers.numel()

    def result(self) -> ValueStats:
        """What was gathered."""
        seen = self._least <= self._most
        share = None if self._outside is None else self._outside / max(self._elements, 1)
        return ValueStats(
            key=self._key,
            version=self._version,
            shape=self._shape or (),
            dtype=" or ".join(self._dtypes),
            device=self._device,
            elements=self._elements,
            minimum=self._least if seen else None,
            mean=self._sum / self._finite if self._finite else None,
            maximum=self._most if seen else None,
            nans=self._nans,
            outside=share,
            spec=self._spec,
            lies=tuple(self._lies),
        )


def _common(one: tuple[int, ...], other: tuple[int, ...]) -> tuple[int, ...]:
    if len(one) != len(other):
        return one
    return tuple(a if a == b else -1 for a, b in zip(one, other, strict=True))


def numbers_outside(leaf: TensorSpec, value: Tensor) -> int | None:
    """How many elements a spec does not let through.

    Args:
        leaf: the spec, ``[*B, ...]``.
        value: of that shape and dtype.

    Returns:
        ``None`` where shape or dtype are others. Where a spec speaks of several elements at
        once, such as a one-hot, all of them count as outside with it.
    """
    from tdx.core.envs.spec_violations import check_value, outside
    from tdx.specs import Bounded, Categorical

    codes = {finding.code for finding in check_value("", leaf, value, "step")}
    if codes & {"shape", "dtype"}:
        return None
    if isinstance(leaf, Bounded):
        return int(outside(value, leaf.low, leaf.high).sum())
    if "bounds" not in codes:
        return 0
    if isinstance(leaf, Categorical):
        return int(((value < 0) | (value >= leaf.space.n)).sum()) or value.numel()
    return value.numel()

"""Violations of a spec: keys, shapes, dtypes, devices or numbers other than the declared ones."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from tensordict import TensorDictBase
from torch import Tensor

from tdx.foundation.errors import CheckError, Where
from tdx.foundation.keys import NestedKey, format_key, normalize_key
from tdx.foundation.tensordicts import tensor_keys
from tdx.specs.arguments import is_same_device
from tdx.specs.bounded import Bounded
from tdx.specs.non_tensor import holds_objects
from tdx.specs.spec import TensorSpec

ViolationCode = Literal[
    "action",
    "batch_size",
    "bounds",
    "carried",
    "device",
    "done",
    "dtype",
    "fake",
    "missing",
    "nan",
    "partial_reset",
    "shape",
    "undeclared",
    "unstackable",
]
Phase = Literal[
    "specs", "fake_tensordict", "reset", "step", "rollout", "partial reset", "inverse", "recording"
]


@dataclass(frozen=True, slots=True)
class SpecViolation:
    """One difference between a spec and the data.

    Args:
        code: Kind of violation.
        key: Key of the entry; ``None`` for the whole TensorDict.
        phase: Where it was found first.
        message: One line that says what is wrong.
        hint: One line that says how to fix it.
        stage: Index of the stage that violates its spec, from 0. ``None``: the env before the
            chain, or unknown.
        transform: Class name of the transform at that stage.
        value: First element outside the space, for the codes ``bounds`` and ``nan``.
        index: Index of that element in the entry ``[*B, ...]``.
        count: Number of elements outside the space.
    """

    code: ViolationCode
    key: NestedKey | None
    phase: Phase
    message: str
    hint: str | None = None
    stage: int | None = None
    transform: str | None = None
    value: float | None = None
    index: tuple[int, ...] | None = None
    count: int = 0

    @property
    def identity(self) -> tuple[ViolationCode, NestedKey | None]:
        """Two findings with the same identity are one violation."""
        # Everything computed from NaN is NaN, so only the first place counts.
        return self.code, None if self.code == "nan" else self.key

    def at_stage(self, stage: int, transform: str) -> SpecViolation:
        """Return the same violation, attributed to a stage."""
        return replace(self, stage=stage, transform=transform)

    def to_error(self, others: int = 0) -> CheckError:
        """Return the violation as an error that mentions the number of others."""
        more = f"; {others} more violation{'s' if others > 1 else ''}" if others else ""
        where = Where(stage=self.stage, transform=self.transform, key=self.key)
        return CheckError(self.message + more, hint=self.hint, where=where)


def entry_keys(tensordict: TensorDictBase) -> list[NestedKey]:
    """Return the keys of the leaves of a TensorDict."""
    keys = tensor_keys(tensordict)
    return [normalize_key(key) for key in tensordict.keys(True, True)] if keys is None else keys


def find_violations(
    entries: TensorDictBase | Mapping[NestedKey, object],
    declared: Mapping[NestedKey, TensorSpec],
    phase: Phase,
    *,
    check_dtype: bool = True,
    allowed: Collection[NestedKey] | None = (),
) -> Iterator[SpecViolation]:
    """Check entries ``[*B, ...]`` against their specs.

    ``allowed`` are undeclared keys that may exist; ``None``: any.
    """
    is_tensordict = isinstance(entries, TensorDictBase)
    for key, leaf in declared.items():
        value = get_entry(entries, key) if is_tensordict else entries.get(key)
        if value is None:
            yield SpecViolation(
                "missing",
                key,
                phase,
                f"the spec declares it, but it is missing{_after(phase)}",
                hint=f"write {format_key(key)!r}, or remove it from the spec",
            )
        elif not holds_objects(leaf):
            yield from _check_value(key, leaf, value, phase, check_dtype)
    if allowed is None:
        return
    for key in entry_keys(entries) if is_tensordict else entries:
        if key not in declared and key not in allowed:
            yield SpecViolation(
                "undeclared",
                key,
                phase,
                f"it exists{_after(phase)}, but no spec declares it",
                hint=f"declare {format_key(key)!r}, or do not write it",
            )


def _after(phase: Phase) -> str:
    names = {"inverse": "the inverse", "fake_tensordict": "fake_tensordict()"}
    return "" if phase == "recording" else f" after {names.get(phase, f'a {phase}')}"


def get_entry(tensordict: TensorDictBase, key: NestedKey) -> Any:
    """Return an entry, or ``None``; a list of rows if they differ in shape."""
    try:
        return tensordict.get(key, None)
    except RuntimeError:
        return tensordict.get(key, None, as_list=True)


def _check_value(
    key: NestedKey, leaf: TensorSpec, value: object, phase: Phase, check_dtype: bool
) -> Iterator[SpecViolation]:
    if isinstance(value, list):  # rows that differ in shape
        for row, part in zip(leaf.unbind(getattr(leaf, "stack_dim", 0)), value, strict=True):
            yield from _check_value(key, row, part, phase, check_dtype)
        return
    after = _after(phase)
    if not isinstance(value, Tensor):
        message = f"it is a {type(value).__name__}{after}, its spec is a tensor"
        yield SpecViolation("dtype", key, phase, message, hint="declare it as NonTensor")
        return
    code: ViolationCode
    fits = True
    for code, actual, expected, matches, hint in (
        (
            "shape",
            tuple(value.shape),
            tuple(leaf.shape),
            _same_shape(value.shape, leaf.shape),
            "correct the shape of the spec, or reshape the value",
        ),
        (
            "dtype",
            value.dtype,
            leaf.dtype,
            not check_dtype or value.dtype == leaf.dtype,
            "correct the dtype of the spec, or cast the value",
        ),
        (
            "device",
            value.device,
            leaf.device,
            is_same_device(value.device, leaf.device),
            "create the tensor on the device of the env, or move the env",
        ),
    ):
        if not matches:
            fits = False
            message = f"its {code} is {actual}{after}, its spec says {expected}"
            yield SpecViolation(code, key, phase, message, hint=hint)
    if not fits or value.device.type == "meta":
        return
    reason = leaf.why_not_in(value if value.dtype == leaf.dtype else value.to(leaf.dtype))
    if reason is None:
        # A spec without bounds contains NaN.
        if value.is_floating_point() and bool((is_nan := value.isnan()).any()):
            hint = "correct what writes it; a spec without bounds allows it"
            place = tuple(is_nan.nonzero()[0].tolist())
            message = f"it holds nan{after}"
            yield SpecViolation(
                "nan",
                key,
                phase,
                message,
                hint,
                value=float("nan"),
                index=place,
                count=int(is_nan.sum()),
            )
        return
    outside = elements_outside(leaf, value)
    if outside is None:
        yield SpecViolation("bounds", key, phase, f"{reason}{after}", hint=_WIDEN)
    elif bool(outside.any()):
        place = tuple(outside.nonzero()[0].tolist())
        number = value[place].item()
        message = f"{reason}{after}"
        if isinstance(leaf, Bounded):
            low, high = (bound.expand_as(value)[place].item() for bound in (leaf.low, leaf.high))
            message = f"it holds {number:g}{after}, outside [{low:g}, {high:g}]"
        yield SpecViolation(
            "bounds",
            key,
            phase,
            message,
            _WIDEN,
            value=number,
            index=place,
            count=int(outside.sum()),
        )


_WIDEN = "widen the spec, or clamp the value"


def elements_outside(leaf: TensorSpec, value: object) -> Tensor | None:
    """Return a mask of the elements that are outside a spec by more than rounding errors.

    If a spec constrains several elements together, such as a one-hot vector, all of them are
    outside. ``None`` if the shape or the dtype differs, or value or spec is not one tensor.
    """
    if not isinstance(value, Tensor) or value.is_nested or value.dtype != leaf.dtype:
        return None
    inside = leaf.elements_in(value) if _same_shape(value.shape, leaf.shape) else None
    if inside is None:
        return None
    outside = ~inside
    if value.is_floating_point() and isinstance(leaf, Bounded) and bool(outside.any()):
        slack = 16 * torch.finfo(value.dtype).eps
        below = value < leaf.low - slack * leaf.low.abs().nan_to_num(posinf=0.0)
        above = value > leaf.high + slack * leaf.high.abs().nan_to_num(posinf=0.0)
        return below | above | value.isnan()
    return outside


def check_batch_size(
    tensordict: TensorDictBase, declared: torch.Size, phase: Phase
) -> Iterator[SpecViolation]:
    """Check the batch size of a TensorDict against its specs."""
    if tensordict.batch_size != declared:
        actual, expected = tuple(tensordict.batch_size), tuple(declared)
        message = f"the TensorDict of a {phase} has batch size {actual}, its spec {expected}"
        yield SpecViolation("batch_size", None, phase, message)


def _same_shape(actual: torch.Size, expected: torch.Size) -> bool:
    return len(actual) == len(expected) and all(
        declared in (-1, size) for size, declared in zip(actual, expected, strict=True)
    )


def unique_violations(
    violations: Iterable[SpecViolation],
) -> list[SpecViolation]:
    """Return each violation once: the first one found, preferably one with a stage."""
    unique: dict[tuple[ViolationCode, NestedKey | None], SpecViolation] = {}
    for violation in violations:
        known = unique.setdefault(violation.identity, violation)
        if known.stage is None and violation.stage is not None:
            unique[violation.identity] = violation
    return list(unique.values())

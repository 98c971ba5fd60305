"""Violations of a spec: values, dtypes, shapes or keys that differ from what is declared."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from tensordict import TensorDictBase
from torch import Tensor

from tdx.foundation.errors import CheckError, Where
from tdx.foundation.keys import NestedKey, format_key, normalize_key
from tdx.foundation.tensordicts import tensor_keys
from tdx.specs import (
    Bounded,
    BoundedContinuous,
    BoundedDiscrete,
    Composite,
    NonTensor,
    TensorSpec,
    Unbounded,
    UnboundedContinuous,
    UnboundedDiscrete,
)

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
Phase = Literal["specs", "fake_tensordict", "reset", "step", "rollout", "partial reset", "inverse"]


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
    """

    code: ViolationCode
    key: NestedKey | None
    phase: Phase
    message: str
    hint: str | None = None
    stage: int | None = None
    transform: str | None = None

    @property
    def identity(self) -> tuple[ViolationCode, NestedKey | None]:
        """Two findings with the same identity are one violation."""
        # Everything computed from NaN is NaN, so only the first place counts.
        return self.code, None if self.code == "nan" else self.key

    def at_stage(self, stage: int, transform: str) -> SpecViolation:
        """Return the same violation, attributed to a stage."""
        return replace(self, stage=stage, transform=transform)

    def to_error(self, others: int = 0) -> CheckError:
        """Return the violation as an error.

        Args:
            others: Number of other violations, for the message.
        """
        more = f"; {others} more violation{'s' if others > 1 else ''}" if others else ""
        where = Where(stage=self.stage, transform=self.transform, key=self.key)
        return CheckError(self.message + more, hint=self.hint, where=where)


def spec_leaves(spec: Composite) -> dict[NestedKey, TensorSpec]:
    """Return the leaves of a composite by key."""
    return {normalize_key(key): leaf for key, leaf in spec.items(True, True)}


def spec_identity(spec: TensorSpec) -> object | None:
    """Return a key that specs with the same numbers share, if they share their memory.

    Copies of a spec share the memory of its bounds, so this is faster than a comparison. A key is
    valid as long as the specs live.

    Returns:
        The key; ``None`` for kinds of specs other than ``Unbounded`` and ``Bounded``.
    """
    kind = type(spec)
    if kind not in _PLAIN:
        return None
    if isinstance(spec, Bounded):
        low, high = spec._low, spec._high
        bounds = low.data_ptr(), low.stride(), high.data_ptr(), high.stride()
        return kind, low.shape, high.shape, spec.dtype, spec.device, bounds
    return kind, spec.shape, spec.dtype, spec.device


_PLAIN = (
    *(Unbounded, UnboundedContinuous, UnboundedDiscrete),
    *(Bounded, BoundedContinuous, BoundedDiscrete),
)


def entry_keys(tensordict: TensorDictBase) -> list[NestedKey]:
    """Return the keys of the leaves of a TensorDict."""
    keys = tensor_keys(tensordict)
    return [normalize_key(key) for key in tensordict.keys(True, True)] if keys is None else keys


def check_entries(
    tensordict: TensorDictBase,
    declared: dict[NestedKey, TensorSpec],
    phase: Phase,
    *,
    check_dtype: bool = True,
    allowed: Collection[NestedKey] | None = (),
) -> Iterator[SpecViolation]:
    """Check the entries of a TensorDict against their specs.

    Args:
        tensordict: The data, ``[*B]``.
        declared: Leaf specs by key, ``[*B, ...]``.
        phase: Where the TensorDict comes from.
        check_dtype: If True, compare dtypes.
        allowed: Undeclared keys that may exist. ``None``: any.
    """
    for key, leaf in declared.items():
        value = get_entry(tensordict, key)
        if value is None:
            yield SpecViolation(
                "missing",
                key,
                phase,
                f"the spec declares it, but it is missing after {_phrase(phase)}",
                hint=f"write {format_key(key)!r}, or remove it from the spec",
            )
        elif not isinstance(leaf, NonTensor):
            yield from check_value(key, leaf, value, phase, check_dtype)
    if allowed is None:
        return
    for key in entry_keys(tensordict):
        if key not in declared and key not in allowed:
            yield SpecViolation(
                "undeclared",
                key,
                phase,
                f"it exists after {_phrase(phase)}, but no spec declares it",
                hint=f"declare {format_key(key)!r}, or do not write it",
            )


def _phrase(phase: Phase) -> str:
    phrases = {"inverse": "the inverse", "fake_tensordict": "fake_tensordict()"}
    return phrases.get(phase, f"a {phase}")


def get_entry(tensordict: TensorDictBase, key: NestedKey) -> Any:
    """Return an entry, or ``None``; a list of rows if they differ in shape."""
    try:
        return tensordict.get(key, None)
    except RuntimeError:
        return tensordict.get(key, None, as_list=True)


def check_value(
    key: NestedKey, leaf: TensorSpec, value: Any, phase: Phase, check_dtype: bool = True
) -> Iterator[SpecViolation]:
    """Check one value ``[*B, ...]`` against its spec.

    Args:
        key: Key of the entry.
        leaf: Its spec.
        value: A tensor, or a list of rows if they differ in shape.
        phase: Where the value comes from.
        check_dtype: If True, compare dtypes.
    """
    if isinstance(value, list):
        for row, part in zip(leaf.unbind(getattr(leaf, "stack_dim", 0)), value, strict=True):
            yield from check_value(key, row, part, phase, check_dtype)
        return
    if not isinstance(value, Tensor):
        message = f"it is a {type(value).__name__} after {_phrase(phase)}, its spec is a tensor"
        yield SpecViolation("dtype", key, phase, message, hint="declare it as NonTensor")
        return
    code: ViolationCode
    fits = True
    for code, actual, expected, matches in (
        ("shape", tuple(value.shape), tuple(leaf.shape), _same_shape(value.shape, leaf.shape)),
        ("dtype", value.dtype, leaf.dtype, not check_dtype or value.dtype == leaf.dtype),
        ("device", value.device, leaf.device, same_device(value.device, leaf.device)),
    ):
        if not matches:
            fits = False
            message = f"its {code} is {actual} after {_phrase(phase)}, its spec says {expected}"
            yield SpecViolation(code, key, phase, message, hint=_HINTS[code])
    if fits and value.device.type != "meta":
        yield from _out_of_bounds(key, leaf, value.to(leaf.dtype), phase)


_HINTS: dict[ViolationCode, str] = {
    "shape": "correct the shape of the spec, or reshape the value",
    "dtype": "correct the dtype of the spec, or cast the value",
    "device": "create the tensor on the device of the env, or move the env",
}


def _out_of_bounds(
    key: NestedKey, leaf: TensorSpec, value: Tensor, phase: Phase
) -> Iterator[SpecViolation]:
    reason = leaf.why_not_in(value)
    if reason is None:
        if value.is_floating_point() and bool(value.isnan().any()):
            hint = "correct what writes it; a spec without bounds allows it"
            yield SpecViolation(
                "nan", key, phase, f"it holds nan after {_phrase(phase)}", hint=hint
            )
        return
    message = f"after {_phrase(phase)} {reason}"
    low, high = getattr(leaf, "low", None), getattr(leaf, "high", None)
    if isinstance(low, Tensor) and isinstance(high, Tensor):
        beyond = outside(value, low, high)
        if not bool(beyond.any()):
            return
        found, least, most = (
            side.expand_as(value)[beyond][0].item() for side in (value, low, high)
        )
        message = f"it holds {found:g} after {_phrase(phase)}, outside [{least:g}, {most:g}]"
    yield SpecViolation("bounds", key, phase, message, hint="widen the spec, or clamp the value")


def outside(value: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """Return a mask of the numbers that are out of bounds by more than rounding errors."""
    if not value.is_floating_point():
        return (value < low) | (value > high)
    slack = 16 * torch.finfo(value.dtype).eps
    below = value < low - slack * low.abs().nan_to_num(posinf=0.0)
    above = value > high + slack * high.abs().nan_to_num(posinf=0.0)
    return below | above | value.isnan()


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


def same_device(actual: torch.device | None, expected: torch.device | None) -> bool:
    """Return True if a tensor is on the device of its spec; a bare ``cuda`` means any index."""
    if actual is None or expected is None:
        return True
    indices = {actual.index, expected.index}
    return actual.type == expected.type and (len(indices) == 1 or None in indices)


def unique_violations(
    violations: Iterator[SpecViolation] | list[SpecViolation],
) -> list[SpecViolation]:
    """Return each violation once: the first one found, preferably one with a stage."""
    found: dict[tuple[ViolationCode, NestedKey | None], SpecViolation] = {}
    for violation in violations:
        known = found.setdefault(violation.identity, violation)
        if known.stage is None and violation.stage is not None:
            found[violation.identity] = violation
    return list(found.values())

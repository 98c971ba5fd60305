"""What can be wrong between a spec and the data it speaks of, and how that is told."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from tensordict import TensorDictBase
from torch import Tensor

from tdx.errors import CheckError, Where
from tdx.keys import NestedKey, format_key, normalize_key
from tdx.specs import Composite, NonTensor, TensorSpec

Lie = Literal[
    "action",
    "batch_size",
    "bounds",
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
Phase = Literal["specs", "fake_tensordict", "reset", "step", "rollout", "partial reset", "way in"]


@dataclass(frozen=True, slots=True)
class SpecFinding:
    """One thing that a spec promises and the data does not keep, or the reverse.

    Args:
        code: what kind of lie it is.
        key: the key of the entry that lies; ``None`` where it is the whole TensorDict.
        phase: where it was seen first.
        message: one line that says what is wrong.
        hint: one line that says what to do about it.
        stage: index of the stage that lies, from 0; ``None`` for the env before the chain, and
            where it is not known.
        transform: class name of the transform at that stage.
    """

    code: Lie
    key: NestedKey | None
    phase: Phase
    message: str
    hint: str | None = None
    stage: int | None = None
    transform: str | None = None

    @property
    def identity(self) -> tuple[Lie, NestedKey | None]:
        """What two sightings of one lie have in common."""
        # What is computed from nan is nan: where it was seen first is what counts.
        return self.code, None if self.code == "nan" else self.key

    def at_stage(self, stage: int, transform: str) -> SpecFinding:
        """The same finding, blamed on a stage."""
        return replace(self, stage=stage, transform=transform)

    def to_error(self, others: int = 0) -> CheckError:
        """The finding as an error.

        Args:
            others: how many more findings there are; told in the message.
        """
        more = f"; {others} more finding{'s' if others > 1 else ''}" if others else ""
        where = Where(stage=self.stage, transform=self.transform, key=self.key)
        return CheckError(self.message + more, hint=self.hint, where=where)


def leaves_of(spec: Composite) -> dict[NestedKey, TensorSpec]:
    """The leaves of a composite by key; those of stacked ones as they are stacked."""
    return {normalize_key(key): leaf for key, leaf in spec.items(True, True)}


def leaf_keys(tensordict: TensorDictBase) -> list[NestedKey]:
    """The keys of every entry that is no TensorDict itself."""
    return [normalize_key(key) for key in tensordict.keys(True, True)]


def held_against(
    tensordict: TensorDictBase,
    declared: dict[NestedKey, TensorSpec],
    phase: Phase,
    *,
    check_dtype: bool = True,
    allowed: Collection[NestedKey] | None = (),
) -> Iterator[SpecFinding]:
    """Hold a TensorDict against the leaves that it is declared to have.

    Args:
        tensordict: ``[*B]``.
        declared: the leaf specs, ``[*B, ...]``, by key.
        phase: where the TensorDict comes from.
        check_dtype: whether dtypes are compared.
        allowed: undeclared keys that may be there; ``None`` for any.
    """
    for key, leaf in declared.items():
        value = entry_at(tensordict, key)
        if value is None:
            yield SpecFinding(
                "missing",
                key,
                phase,
                f"the spec declares it, but it is not there after {_told(phase)}",
                hint=f"write {format_key(key)!r}, or take it out of the spec",
            )
        elif not isinstance(leaf, NonTensor):
            yield from leaf_findings(key, leaf, value, phase, check_dtype)
    if allowed is None:
        return
    for key in leaf_keys(tensordict):
        if key not in declared and key not in allowed:
            yield SpecFinding(
                "undeclared",
                key,
                phase,
                f"it is there after {_told(phase)}, but no spec declares it",
                hint=f"declare {format_key(key)!r}, or do not write it",
            )


def _told(phase: Phase) -> str:
    named = {"way in": "the way in", "fake_tensordict": "fake_tensordict()"}
    return named.get(phase, f"a {phase}")


def entry_at(tensordict: TensorDictBase, key: NestedKey) -> Any:
    """The entry, ``None`` if there is none; a list of rows where they differ in shape."""
    try:
        return tensordict.get(key, None)
    except RuntimeError:
        return tensordict.get(key, None, as_list=True)


def leaf_findings(
    key: NestedKey, leaf: TensorSpec, value: Any, phase: Phase, check_dtype: bool = True
) -> Iterator[SpecFinding]:
    """Hold one value ``[*B, ...]`` against its spec.

    Args:
        key: the key of both.
        leaf: the spec.
        value: a tensor; a list of rows where they differ in shape.
        phase: where the value comes from.
        check_dtype: whether dtypes are compared.
    """
    if isinstance(value, list):
        for row, part in zip(leaf.unbind(), value, strict=True):
            yield from leaf_findings(key, row, part, phase, check_dtype)
        return
    if not isinstance(value, Tensor):
        message = f"it is a {type(value).__name__} after {_told(phase)}, its spec says a tensor"
        yield SpecFinding("dtype", key, phase, message, hint="declare it as NonTensor")
        return
    code: Lie
    fits = True
    for code, there, said, same in (
        ("shape", tuple(value.shape), tuple(leaf.shape), _same_shape(value.shape, leaf.shape)),
        ("dtype", value.dtype, leaf.dtype, not check_dtype or value.dtype == leaf.dtype),
        ("device", value.device, leaf.device, same_device(value.device, leaf.device)),
    ):
        if not same:
            fits = False
            message = f"its {code} is {there} after {_told(phase)}, its spec says {said}"
            yield SpecFinding(code, key, phase, message, hint=_HINTS[code])
    if fits and value.device.type != "meta":
        yield from _out_of_bounds(key, leaf, value.to(leaf.dtype), phase)


_HINTS: dict[Lie, str] = {
    "shape": "mend the spec's shape, or reshape the value",
    "dtype": "mend the spec's dtype, or cast the value",
    "device": "make the tensor on the env's device, or move the env",
}


def _out_of_bounds(
    key: NestedKey, leaf: TensorSpec, value: Tensor, phase: Phase
) -> Iterator[SpecFinding]:
    reason = leaf.why_not_in(value)
    if reason is None:
        if value.is_floating_point() and bool(value.isnan().any()):
            hint = "mend what writes it; a spec without bounds does not forbid it"
            yield SpecFinding("nan", key, phase, f"it holds nan after {_told(phase)}", hint=hint)
        return
    message = f"after {_told(phase)} {reason}"
    low, high = getattr(leaf, "low", None), getattr(leaf, "high", None)
    if isinstance(low, Tensor) and isinstance(high, Tensor):
        beyond = outside(value, low, high)
        if not bool(beyond.any()):
            return
        found, least, most = (
            side.expand_as(value)[beyond][0].item() for side in (value, low, high)
        )
        message = f"it holds {found:g} after {_told(phase)}, outside [{least:g}, {most:g}]"
    yield SpecFinding("bounds", key, phase, message, hint="widen the spec, or clamp the value")


def outside(value: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """Which numbers are beyond the ends by more than a few roundings."""
    if not value.is_floating_point():
        return (value < low) | (value > high)
    slack = 16 * torch.finfo(value.dtype).eps
    below = value < low - slack * low.abs().nan_to_num(posinf=0.0)
    above = value > high + slack * high.abs().nan_to_num(posinf=0.0)
    return below | above | value.isnan()


def wrong_batch_size(
    tensordict: TensorDictBase, declared: torch.Size, phase: Phase
) -> Iterator[SpecFinding]:
    """Whether a TensorDict has another batch size than its specs say."""
    if tensordict.batch_size != declared:
        there, said = tuple(tensordict.batch_size), tuple(declared)
        message = f"the TensorDict of a {phase} has batch size {there}, its spec says {said}"
        yield SpecFinding("batch_size", None, phase, message)


def _same_shape(there: torch.Size, said: torch.Size) -> bool:
    return len(there) == len(said) and all(
        wanted in (-1, size) for size, wanted in zip(there, said, strict=True)
    )


def same_device(there: torch.device | None, said: torch.device | None) -> bool:
    """Whether a tensor is where its spec says; a bare ``cuda`` means any of its indices."""
    if there is None or said is None:
        return True
    indices = {there.index, said.index}
    return there.type == said.type and (len(indices) == 1 or None in indices)


def unique_findings(findings: Iterator[SpecFinding] | list[SpecFinding]) -> list[SpecFinding]:
    """Each lie once, as it was seen first; one with a stage before one without."""
    found: dict[tuple[Lie, NestedKey | None], SpecFinding] = {}
    for finding in findings:
        known = found.setdefault(finding.identity, finding)
        if known.stage is None and finding.stage is not None:
            found[finding.identity] = finding
    return list(found.values())

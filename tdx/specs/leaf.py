"""Leaf specs as plain data, and as text."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from tdx.foundation.keys import NestedKey
from tdx.foundation.serialization import Entries, Entry, Result, key_entry
from tdx.foundation.text import dtype_name

if TYPE_CHECKING:
    from torch import Tensor

    from tdx.specs import Composite, MultiCategorical, MultiOneHot, TensorSpec

Part = Literal["observation", "reward", "done", "action", "state", "stored"]
"""Part of the env that a key belongs to; ``"stored"`` for data without an env."""
OUTPUT_PARTS: tuple[Part, ...] = ("observation", "reward", "done")
INPUT_PARTS: tuple[Part, ...] = ("action", "state")
PARTS: tuple[Part, ...] = (*OUTPUT_PARTS, *INPUT_PARTS)
"""Parts of an env, in the order in which they are reported."""
Field = Literal["kind", "shape", "dtype", "device", "domain"]
_FIELDS: tuple[Field, ...] = ("kind", "shape", "dtype", "device", "domain")
MAX_LISTED_BOUNDS = 1_000
"""Largest number of bounds that are listed element by element."""
Bounds = Any
"""A number, or numbers in lists nested like the shape."""
_MAX_LENGTH = 34
_MAX_PERIOD = 64
_KIND_TEXTS = {"Choice": "one of several", "Stacked": "differs by row"}
_MIN_INT, _MAX_INT = -(2**63), 2**63 - 1


@dataclass(frozen=True, slots=True)
class Domain(Result):
    """Values that a spec allows.

    Args:
        low: Smallest value. One number if all elements agree, otherwise nested lists that broadcast
            to the shape: bounds have size 1 along dims in which they do not differ.
        high: Largest value, in the same form.
        choices: Number of values to choose from; one number per variable if there are several.
        digest: Fingerprint of all bounds. Set if there are too many to list; ``low`` and ``high``
            are then the minimum and the maximum of them.
    """

    json_entries: ClassVar[Entries] = (
        *(Entry(end, type=float | list[Any] | None) for end in ("low", "high")),
        "choices",
        Entry("digest", omit_none=True),
    )

    low: Bounds = None
    high: Bounds = None
    choices: int | tuple[int, ...] | None = None
    digest: str | None = None


@dataclass(frozen=True, slots=True)
class LeafSpec(Result):
    """Declared shape, dtype and domain of one key.

    Args:
        part: Part of the env that the key belongs to.
        key: The key.
        kind: Class of the spec, such as ``"Bounded"``.
        shape: Shape with the batch dims.
        dtype: Such as ``"float32"``; ``"object"`` for data that is not a tensor.
        device: Such as ``"cuda:0"``.
        domain: Values that the spec allows.
    """

    json_entries: ClassVar[Entries] = (
        *("part", key_entry("key"), "kind", "shape", "dtype", "device"),
        Entry("domain", inline=True),
    )

    part: Part
    key: NestedKey
    kind: str
    shape: tuple[int, ...]
    dtype: str
    device: str
    domain: Domain

    def differing_fields(self, other: LeafSpec) -> tuple[Field, ...]:
        """Return the fields in which two specs differ, without their keys."""
        return tuple(name for name in _FIELDS if getattr(self, name) != getattr(other, name))


def composite_leaves(
    input_spec: Composite, output_spec: Composite, known: KnownLeaves | None = None
) -> tuple[LeafSpec, ...]:
    """Convert the leaves of an input and an output spec, in the order of ``PARTS``.

    ``known`` has leaves that were converted already, and is added to; their specs have to stay
    alive meanwhile.
    """
    leaves: list[LeafSpec] = []
    known = {} if known is None else known
    for part in PARTS:
        whole = output_spec if part in OUTPUT_PARTS else input_spec
        name = f"full_{part}_spec"
        spec = whole[name] if name in whole.keys() else None
        for key, leaf in () if spec is None else spec.items(include_nested=True, leaves_only=True):
            # The stages of tdx pass on a leaf that they do not change.
            at = part, key, id(leaf)
            if at not in known:
                known[at] = leaf_spec(part, key, leaf)
            leaves.append(known[at])
    return tuple(leaves)


KnownLeaves = dict[tuple[Part, NestedKey, int], LeafSpec]


def leaf_spec(part: Part, key: NestedKey, spec: TensorSpec) -> LeafSpec:
    """Convert one spec."""
    dtype = dtype_name(spec.dtype)
    return LeafSpec(
        part=part,
        key=key,
        kind=type(spec).__name__,
        shape=tuple(spec.shape),
        dtype=dtype,
        device=str(spec.device),
        domain=_domain(spec),
    )


def _domain(spec: TensorSpec) -> Domain:
    from tdx.specs import Binary, Bounded, Categorical, MultiCategorical, MultiOneHot, OneHot

    if isinstance(spec, Bounded):
        return _range(spec.space.low, spec.space.high)
    if isinstance(spec, MultiOneHot | MultiCategorical):
        if _is_meta(spec.nvec):
            return Domain()
        return Domain(choices=_choices(spec))
    if isinstance(spec, Binary):
        return Domain(choices=2)
    if isinstance(spec, OneHot | Categorical):
        return Domain(choices=int(spec.space.n))
    return Domain()


def _choices(spec: MultiOneHot | MultiCategorical) -> tuple[int, ...]:
    import torch

    counts = torch.as_tensor(spec.nvec)
    rows = counts.reshape(-1, counts.shape[-1])
    same = bool((rows == rows[:1]).all())
    return tuple(int(n) for n in (rows[0] if same else counts.reshape(-1)).tolist())


def _range(low: Tensor, high: Tensor) -> Domain:
    import torch

    if _is_meta(low):
        return Domain()
    ends = [_without_repeats(end) for end in (low, high)]
    if all(end.numel() <= MAX_LISTED_BOUNDS for end in ends):
        return Domain(*map(_numbers, ends))
    digest = hashlib.sha256()
    for end in (low, high):
        digest.update(end.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return Domain(low.min().item(), high.max().item(), digest=digest.hexdigest()[:16])


def _is_meta(values: Tensor | list[int]) -> bool:
    """Return True for a tensor on the ``meta`` device, which has no values."""
    return not isinstance(values, list) and values.device.type == "meta"


def _without_repeats(bound: Tensor) -> Tensor:
    """Reduce bounds to one element if all agree, else to size 1 along dims without differences."""
    if bound.numel() == 0:
        return bound
    first = bound[(0,) * bound.ndim]
    # An expanded number has no strides.
    if bound.numel() == 1 or not any(bound.stride()) or bool((bound == first).all()):
        return first
    for dim in range(bound.ndim):
        first = bound.narrow(dim, 0, 1)
        if bool((bound == first).all()):
            bound = first
    return bound


def _numbers(bound: Tensor) -> Bounds:
    """Convert bounds to one number or nested lists; ``None`` if they have no elements."""
    return bound.tolist() if bound.numel() else None


class SpecText:
    """Formats specs on one line each, with aligned shapes, dtypes and bounds.

    With ``whole``, long bounds that differ by element are written out, up to 64 distinct elements.
    """

    def __init__(self, leaves: Iterable[LeafSpec], *, whole: bool = True) -> None:
        leaves = list(leaves)
        self._whole = whole
        self._with_device = len({leaf.device for leaf in leaves}) > 1
        self._shape_width = max((len(shape_text(leaf.shape)) for leaf in leaves), default=0)
        self._dtype_width = max((len(leaf.dtype) for leaf in leaves), default=0)
        self._device_width = max((len(leaf.device) for leaf in leaves), default=0)

    def __call__(self, leaf: LeafSpec) -> str:
        """Format one spec."""
        parts = [
            shape_text(leaf.shape).ljust(self._shape_width),
            leaf.dtype.ljust(self._dtype_width),
            *([leaf.device.ljust(self._device_width)] if self._with_device else []),
            domain_text(leaf, whole=self._whole),
        ]
        return "  ".join(parts).rstrip()


def shape_text(shape: Sequence[int]) -> str:
    """Format a shape as ``[3, 84, 84]``; ``?`` stands for a dim that differs within a stack.

    Example:
        >>> shape_text((4, -1))
        '[4, ?]'
    """
    return f"[{', '.join('?' if size < 0 else str(size) for size in shape)}]"


def domain_text(leaf: LeafSpec, *, whole: bool, digits: int = 6) -> str:
    """Format the values that a spec allows.

    With ``whole``, long bounds that differ by element are written out, up to 64 distinct elements.
    """
    domain, number = leaf.domain, partial(_format_number, digits=digits)
    if leaf.kind in _KIND_TEXTS:
        return _KIND_TEXTS[leaf.kind]
    if leaf.dtype == "bool" and not leaf.kind.endswith("OneHot"):
        return "any"
    if domain.choices is not None:
        return _choices_text(leaf.kind, domain.choices)
    if domain.low is None or domain.high is None:
        return "any"
    if domain.digest is not None:
        return f"{number(domain.low)} … {number(domain.high)}, by element"
    if not isinstance(domain.low, list) and not isinstance(domain.high, list):
        return _range_text(domain.low, domain.high, number)
    domain = Domain(_one_row(domain.low), _one_row(domain.high))
    if max(len(_period(_flat(end))) for end in (domain.low, domain.high)) <= _MAX_PERIOD:
        if isinstance(domain.high, list) and _flat(domain.low) == [-x for x in _flat(domain.high)]:
            text = f"±{_format_numbers(domain.high, number)}"
        else:
            text = f"{_format_numbers(domain.low, number)} … {_format_numbers(domain.high, number)}"
        if whole or len(text) <= _MAX_LENGTH:
            return text
    low, high = min(_flat(domain.low)), max(_flat(domain.high))
    return f"{number(low)} … {number(high)}, by element"


def _range_text(low: float, high: float, number: Callable[[float], str]) -> str:
    """Format a range; omit a bound that equals the limit of int64."""
    no_low, no_high = low <= _MIN_INT, high >= _MAX_INT
    if no_low and no_high:
        return "any"
    if no_high:
        return f"≥ {number(low)}"
    return f"≤ {number(high)}" if no_low else f"{number(low)} … {number(high)}"


def _choices_text(kind: str, choices: int | tuple[int, ...]) -> str:
    if kind == "OneHot":
        return f"one-hot of {choices}"
    if kind == "MultiOneHot" and not isinstance(choices, int):
        return f"one-hot of {' + '.join(str(count) for count in choices)}"
    if isinstance(choices, int):
        return f"0 … {choices - 1}"
    return f"0 … {_format_numbers([count - 1 for count in choices], str)}"


def _format_numbers(numbers: Bounds, number: Callable[[float], str]) -> str:
    """Format one number or a list, in which a repeated pattern is written once."""
    if not isinstance(numbers, list):
        return number(numbers)
    flat = _flat(numbers)
    once = _period(flat)
    times = len(flat) // len(once)
    text = f"[{', '.join(map(number, once))}]"
    return f"{text} ×{times}" if times > 1 else text


def _one_row(numbers: Bounds) -> Bounds:
    """Return the numbers of one row if all rows agree."""
    while isinstance(numbers, list) and isinstance(numbers[0], list):
        if any(row != numbers[0] for row in numbers):
            break
        numbers = numbers[0]
    return numbers


def _period(numbers: list[int | float]) -> list[int | float]:
    """Return the shortest prefix that yields the whole list when repeated."""
    total = len(numbers)
    for length in range(1, min(total // 2, _MAX_PERIOD) + 1):
        if total % length == 0 and numbers[length:] == numbers[:-length]:
            return numbers[:length]
    return numbers


def _flat(numbers: Bounds) -> list[int | float]:
    if not isinstance(numbers, list):
        return [numbers]
    if not any(isinstance(inner, list) for inner in numbers):
        return numbers
    return [number for inner in numbers for number in _flat(inner)]


def _format_number(number: float, digits: int) -> str:
    if isinstance(number, int):
        return str(number)
    return f"{number:.{6 if number.is_integer() else digits}g}"

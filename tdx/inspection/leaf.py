"""One spec as plain data: what it promises, without its tensors."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from tdx.keys import NestedKey, format_key

if TYPE_CHECKING:
    from tdx.specs import Composite, TensorSpec

Part = Literal["observation", "reward", "done", "action", "state", "stored"]
"""What a key is to an env; ``"stored"`` in data that is in no env."""

OUTPUT_PARTS: tuple[Part, ...] = ("observation", "reward", "done")
INPUT_PARTS: tuple[Part, ...] = ("action", "state")
PARTS: tuple[Part, ...] = (*OUTPUT_PARTS, *INPUT_PARTS)
"""The parts of an env."""
MOST_LISTED = 1_000
"""Ends of a range that are listed element by element."""
_MOST_REPEATED = 64
"""Elements up to which equal rows of bounds are listed row by row."""

Number = int | float
Numbers = Any
"""A number, or lists of numbers nested as deep as the shape."""


@dataclass(frozen=True, slots=True)
class Domain:
    """The values that a spec lets through.

    Args:
        low: smallest value, one number where all elements agree, else nested lists that broadcast
            to the shape: large bounds have size 1 along dims where nothing differs.
        high: largest value, in the same form.
        choices: how many values there are to choose from; of several variables, one for each.
        digest: set where the ends differ by element and are too many to list: a fingerprint of
            them all, while ``low`` and ``high`` are the smallest and the largest of them.
    """

    low: Numbers = None
    high: Numbers = None
    choices: int | tuple[int, ...] | None = None
    digest: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """As plain data that JSON can hold: an infinite end is the string ``"inf"``.

        The digest is there only where it is set.
        """
        choices = list(self.choices) if isinstance(self.choices, tuple) else self.choices
        listed = {"low": _finite(self.low), "high": _finite(self.high), "choices": choices}
        return listed if self.digest is None else {**listed, "digest": self.digest}


@dataclass(frozen=True, slots=True)
class LeafSpec:
    """What is promised of one key.

    Args:
        part: what the key is to the env.
        key: the key.
        kind: class of the spec, such as ``"Bounded"``.
        shape: with the batch dims.
        dtype: such as ``"float32"``; ``"object"`` where it is no tensor.
        device: such as ``"cuda:0"``.
        domain: the values it lets through.
    """

    part: Part
    key: NestedKey
    kind: str
    shape: tuple[int, ...]
    dtype: str
    device: str
    domain: Domain

    def to_dict(self) -> dict[str, Any]:
        """As plain data."""
        return {
            "part": self.part,
            "key": format_key(self.key),
            "kind": self.kind,
            "shape": list(self.shape),
            "dtype": self.dtype,
            "device": self.device,
            **self.domain.to_dict(),
        }


def composite_leaves(input_spec: Composite, output_spec: Composite) -> tuple[LeafSpec, ...]:
    """The leaves of an input and an output spec, part after part.

    Args:
        input_spec: what an env takes, in its parts ``full_action_spec``, ``full_state_spec``.
        output_spec: what it gives, in ``full_observation_spec``, ``full_reward_spec``,
            ``full_done_spec``.
    """
    found: list[LeafSpec] = []
    for part in PARTS:
        whole = output_spec if part in OUTPUT_PARTS else input_spec
        name = f"full_{part}_spec"
        spec = whole[name] if name in whole.keys() else None
        found += [leaf_spec(part, key, leaf) for key, leaf in _leaves(spec)]
    return tuple(found)


def _leaves(spec: Composite | None) -> Iterator[tuple[NestedKey, TensorSpec]]:
    if spec is not None:
        yield from spec.items(include_nested=True, leaves_only=True)


def leaf_spec(part: Part, key: NestedKey, spec: TensorSpec) -> LeafSpec:
    """One spec as plain data."""
    dtype = "object" if spec.dtype is None else str(spec.dtype).removeprefix("torch.")
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
        if _holds_nothing(spec.nvec):
            return Domain()
        return Domain(choices=_choices(spec))
    if isinstance(spec, Binary):
        return Domain(choices=2)
    if isinstance(spec, OneHot | Categorical):
        return Domain(choices=int(spec.space.n))
    return Domain()


def _choices(spec: Any) -> tuple[int, ...]:
    import torch

    counts = torch.as_tensor(spec.nvec)
    rows = counts.reshape(-1, counts.shape[-1])
    same = bool((rows == rows[:1]).all())
    return tuple(int(n) for n in (rows[0] if same else counts.reshape(-1)).tolist())


def _range(low: Any, high: Any) -> Domain:
    import torch

    if _holds_nothing(low):
        return Domain()
    ends = [_without_repeats(end) for end in (low, high)]
    if all(end.numel() <= MOST_LISTED for end in ends):
        return Domain(*map(_numbers, ends))
    digest = hashlib.sha256()
    for end in (low, high):
        digest.update(end.detach().cpu().contiguous().view(torch.uint8).numpy())
    return Domain(low.min().item(), high.max().item(), digest=digest.hexdigest()[:16])


def _holds_nothing(values: Any) -> bool:
    """Whether it is a tensor of the device ``meta``, which has no values."""
    return getattr(values, "device", None) is not None and values.device.type == "meta"


def _without_repeats(bound: Any) -> Any:
    """A bound as one element where all agree; a large one of size 1 where nothing differs."""
    if bound.numel() == 0:
        return bound
    if bool((bound == bound.reshape(-1)[0]).all()):
        return bound.reshape(-1)[0]
    if bound.numel() > _MOST_REPEATED:
        for dim in range(bound.ndim):
            first = bound.narrow(dim, 0, 1)
            if bool((bound == first).all()):
                bound = first
    return bound


def _numbers(bound: Any) -> Numbers:
    """A bound as one number, or as nested lists; nothing where it has no elements."""
    return bound.tolist() if bound.numel() else None


def _finite(numbers: Numbers) -> Numbers:
    if isinstance(numbers, list):
        return [_finite(number) for number in numbers]
    if isinstance(numbers, float) and numbers in (float("inf"), float("-inf")):
        return "inf" if numbers > 0 else "-inf"
    return numbers

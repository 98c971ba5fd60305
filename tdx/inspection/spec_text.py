"""A spec in one line: shape, dtype, the values it lets through."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tdx.inspection.leaf import Domain, LeafSpec, Numbers

_SHORT = 34
_MANY = 64
_WORDS = {"Choice": "one of several", "Stacked": "differs by row"}
_LEAST, _MOST = -(2**63), 2**63 - 1


class SpecText:
    """Writes specs so that shapes, dtypes and bounds stand under each other.

    Args:
        leaves: all specs that will be written; the widths follow from them.
        whole: whether bounds that differ by element are written out where they are long; more
            than 64 of them never are.
    """

    def __init__(self, leaves: Iterable[LeafSpec], *, whole: bool = True) -> None:
        known = list(leaves)
        self._whole = whole
        self._with_device = len({leaf.device for leaf in known}) > 1
        self._shape_width = max((len(shape_text(leaf.shape)) for leaf in known), default=0)
        self._dtype_width = max((len(leaf.dtype) for leaf in known), default=0)
        self._device_width = max((len(leaf.device) for leaf in known), default=0)

    def __call__(self, leaf: LeafSpec) -> str:
        """The line for one spec."""
        parts = [
            shape_text(leaf.shape).ljust(self._shape_width),
            leaf.dtype.ljust(self._dtype_width),
            *([leaf.device.ljust(self._device_width)] if self._with_device else []),
            domain_text(leaf, whole=self._whole),
        ]
        return "  ".join(parts).rstrip()


def shape_text(shape: Sequence[int]) -> str:
    """A shape as ``[3, 84, 84]``; a dim that differs within a stack as ``?``.

    Example:
        >>> shape_text((4, -1))
        '[4, ?]'
    """
    return f"[{', '.join('?' if size < 0 else str(size) for size in shape)}]"


def domain_text(leaf: LeafSpec, *, whole: bool) -> str:
    """The values that a spec lets through.

    Args:
        leaf: the spec.
        whole: whether bounds that differ by element are written out where they are long; more
            than 64 of them never are.
    """
    domain = leaf.domain
    if leaf.kind in _WORDS:
        return _WORDS[leaf.kind]
    if leaf.dtype == "bool" and not leaf.kind.endswith("OneHot"):
        return "any"
    if domain.choices is not None:
        return _choices_text(leaf.kind, domain.choices)
    if domain.low is None or domain.high is None:
        return "any"
    if domain.digest is not None:
        return f"{_number(domain.low)} … {_number(domain.high)}, by element"
    if not isinstance(domain.low, list) and not isinstance(domain.high, list):
        return _range_text(domain.low, domain.high)
    domain = Domain(_one_row(domain.low), _one_row(domain.high))
    if max(len(_period(_flat(end))) for end in (domain.low, domain.high)) <= _MANY:
        text = _ends(domain.low, domain.high)
        if whole or len(text) <= _SHORT:
            return text
    low, high = min(_flat(domain.low)), max(_flat(domain.high))
    return f"{_number(low)} … {_number(high)}, by element"


def _ends(low: Numbers, high: Numbers) -> str:
    """Both ends, element by element; once where one is the other with its sign changed."""
    if isinstance(high, list) and _flat(low) == [-number for number in _flat(high)]:
        return f"±{_numbers(high)}"
    return f"{_numbers(low)} … {_numbers(high)}"


def _range_text(low: float, high: float) -> str:
    """A range of one low and one high end; an end that bounds nothing is left out."""
    no_low, no_high = low <= _LEAST, high >= _MOST
    if no_low and no_high:
        return "any"
    if no_high:
        return f"≥ {_number(low)}"
    return f"≤ {_number(high)}" if no_low else f"{_number(low)} … {_number(high)}"


def _choices_text(kind: str, choices: int | tuple[int, ...]) -> str:
    if kind == "OneHot":
        return f"one-hot of {choices}"
    if kind == "MultiOneHot" and not isinstance(choices, int):
        return f"one-hot of {' + '.join(str(count) for count in choices)}"
    if isinstance(choices, int):
        return f"0 … {choices - 1}"
    return f"0 … {_numbers([count - 1 for count in choices])}"


def _numbers(numbers: Numbers) -> str:
    """One number, or all of them; what repeats is written once."""
    if not isinstance(numbers, list):
        return _number(numbers)
    flat = _flat(numbers)
    once = _period(flat)
    times = len(flat) // len(once)
    text = f"[{', '.join(map(_number, once))}]"
    return f"{text} ×{times}" if times > 1 else text


def _one_row(numbers: Numbers) -> Numbers:
    """The numbers of one row where those of all rows agree."""
    while isinstance(numbers, list) and isinstance(numbers[0], list):
        if any(row != numbers[0] for row in numbers):
            break
        numbers = numbers[0]
    return numbers


def _period(numbers: list[int | float]) -> list[int | float]:
    """The shortest start of a list that, repeated, makes the whole of it."""
    total = len(numbers)
    for length in range(1, min(total // 2, _MANY) + 1):
        if total % length == 0 and numbers[length:] == numbers[:-length]:
            return numbers[:length]
    return numbers


def _flat(numbers: Numbers) -> list[int | float]:
    if not isinstance(numbers, list):
        return [numbers]
    return [number for inner in numbers for number in _flat(inner)]


def _number(number: float) -> str:
    return str(number) if isinstance(number, int) else f"{number:.6g}"

"""Arguments of stages as plain data, and whether two of them are equal."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

_MODES = {
    *("training", "update_running_mean", "frozen", "num_envs", "lock"),
    *("shared_td", "shapes", "disable_render_order_enforcing"),
}
"""Arguments in which training and evaluation differ on purpose; state and values show the rest."""
REWARD_MODES = {"norm_reward", "clip_reward", "gamma"}
"""Arguments that count only where rewards are compared, for the same reason."""
MAX_LENGTH = 64
"""Largest array or list that is kept as it is; a larger array is reduced to a fingerprint."""
MAX_DEPTH = 4
MISSING = object()
"""Value of an argument that one side does not have."""
_ARRAY = "array"
"""Entry with the shape of an array that is reduced to a fingerprint."""
_DIGITS = 6


def plain_arguments(arguments: Mapping[str, object]) -> dict[str, object]:
    """Return the arguments of a stage as plain data, except mode switches.

    Example:
        >>> plain_arguments({"func": len, "clip": 10.0, "training": True})
        {'func': 'len()', 'clip': 10.0}
    """
    return {
        str(name): plain_argument(value) for name, value in arguments.items() if name not in _MODES
    }


def plain_argument(value: object, depth: int = 0) -> object:
    """Return an argument as plain data; an object as the name of its class."""
    if value is None or isinstance(value, bool | int | float | str):
        return value if not isinstance(value, str) else str(value)[:1_000]
    if isinstance(value, type):
        return value.__name__
    if hasattr(value, "tolist") and hasattr(value, "dtype"):
        array: Any = value
        size = getattr(array, "size", 0)
        count = size if isinstance(size, int) else array.numel()
        if count <= MAX_LENGTH:
            return array.tolist()
        return _fingerprint(array) or f"<{type(value).__name__}>"
    if depth < MAX_DEPTH and isinstance(value, Mapping):
        items = list(value.items())[:MAX_LENGTH]
        return {str(name): plain_argument(item, depth + 1) for name, item in items}
    if depth < MAX_DEPTH and isinstance(value, Sequence | set | frozenset):
        parts = sorted(value, key=str) if isinstance(value, set | frozenset) else list(value)
        if len(parts) > MAX_LENGTH and all(isinstance(part, int | float) for part in parts):
            fingerprint = _fingerprint(parts)
            if fingerprint is not None:
                return fingerprint
        return [plain_argument(part, depth + 1) for part in parts[:MAX_LENGTH]]
    if type(value).__name__ in ("dtype", "device"):
        return str(value)
    if callable(value):
        return f"{getattr(value, '__name__', type(value).__name__)}()"
    return f"<{type(value).__name__}>"


def _fingerprint(value: Any) -> dict[str, object] | None:
    """Return shape, range and hash of an array; ``None`` if it has no numbers.

    The numbers are rounded before they are hashed, so that float32 and float64 agree.
    """
    from hashlib import sha256

    import numpy as np

    if hasattr(value, "detach"):
        value = value.detach().cpu()
        value = value.double() if value.is_floating_point() else value
    array = np.asarray(value)
    if array.dtype.kind not in "biuf" or not array.size:
        return None
    numbers = array.astype(np.float64)
    if array.dtype.kind == "f":
        with np.errstate(all="ignore"):
            exponents = np.floor(np.log10(np.abs(numbers)))
        is_scaled = np.isfinite(exponents)
        scale = 10.0 ** (_DIGITS - 1 - np.where(is_scaled, exponents, 0.0))
        with np.errstate(all="ignore"):
            rounded = np.round(numbers * scale) / scale
        # Zero, infinity, and what is too small to be scaled.
        numbers = np.where(is_scaled & np.isfinite(rounded), rounded, numbers)
    data = (numbers + 0.0).tobytes() if array.dtype.kind == "f" else array.astype("<i8").tobytes()
    ends = [float(f"{end:.{_DIGITS}g}") for end in (numbers.min(), numbers.max())]
    return {
        _ARRAY: list(array.shape),
        "low": ends[0],
        "high": ends[1],
        "digest": sha256(data).hexdigest()[:16],
    }


def changed_arguments(
    a: Mapping[str, object], b: Mapping[str, object], *, rtol: float | None = None
) -> Iterator[tuple[str, object, object]]:
    """Yield the arguments that differ: name and both values, ``MISSING`` for one that is not there.

    Example:
        >>> list(changed_arguments({"clip": 10, "n": 2}, {"clip": 10.0, "n": 3}, rtol=0.0))
        [('n', 2, 3)]
    """
    for name in dict.fromkeys((*a, *b)):
        one, other = a.get(name, MISSING), b.get(name, MISSING)
        if not is_same_argument(one, other, rtol=rtol):
            yield name, one, other


def is_same_argument(a: object, b: object, *, rtol: float | None = None) -> bool:
    """Return True if two arguments are equal; NaN equals NaN.

    An array that was recorded without a fingerprint is equal to every array. With ``rtol``,
    floats may differ by that much and may equal integers; without it, types must be equal.

    Example:
        >>> is_same_argument([1, 2.0], [1, 2]), is_same_argument([1, 2.0], [1, 2], rtol=1e-6)
        (False, True)
    """
    if isinstance(a, bool) or isinstance(b, bool):
        return a is b
    if isinstance(a, int | float) and isinstance(b, int | float):
        if a == b or (a != a and b != b):
            return rtol is not None or type(a) is type(b)
        is_float = isinstance(a, float) or isinstance(b, float)
        return bool(rtol) and is_float and math.isclose(a, b, rel_tol=rtol or 0.0, abs_tol=1e-12)
    if isinstance(a, list | tuple) and isinstance(b, list | tuple):
        is_same_type = rtol is not None or type(a) is type(b)
        return (
            is_same_type
            and len(a) == len(b)
            and all(
                is_same_argument(one, other, rtol=rtol) for one, other in zip(a, b, strict=True)
            )
        )
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        if is_fingerprint(a) and is_fingerprint(b):
            return a[_ARRAY] == b[_ARRAY] and a["digest"] == b["digest"]
        return a.keys() == b.keys() and all(
            is_same_argument(a[name], b[name], rtol=rtol) for name in a
        )
    if is_fingerprint(a) or is_fingerprint(b):
        return _is_unrecorded(a) or _is_unrecorded(b)
    return type(a) is type(b) and bool(a == b)


def is_fingerprint(value: object) -> bool:
    """Return True for an array that is reduced to a fingerprint."""
    return isinstance(value, Mapping) and {_ARRAY, "digest"} <= value.keys()


def _is_unrecorded(value: object) -> bool:
    """Return True for a large array or list as contracts recorded it before fingerprints."""
    if isinstance(value, list):
        return len(value) == MAX_LENGTH
    return isinstance(value, str) and value.startswith("<") and value.endswith(">")


def argument_text(value: object) -> str:
    """Return an argument as a short text.

    Example:
        >>> argument_text(plain_argument(range(100)))
        'an array [100] of 0 to 99'
    """
    if is_fingerprint(value):
        assert isinstance(value, Mapping)
        return f"an array {value[_ARRAY]} of {value['low']:g} to {value['high']:g}"
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:59]}…"

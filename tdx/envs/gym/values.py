"""Checks of the values that a Gymnasium env returns, before they become tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from tdx.envs.gym.interface import DType
from tdx.foundation.array_files import Array

Check = Callable[[object], object]


class WrongValueError(ValueError):
    """A value that the env's space does not allow to be stored.

    ``problem`` completes "step returned ...". ``path`` is the key of the entry, outermost part
    first; ``row`` the env in a batch, and ``index`` the position in a sequence of values.
    """

    def __init__(
        self,
        problem: str | WrongValueError,
        hint: str = "",
        path: tuple[str, ...] = (),
        row: int | None = None,
        index: int | None = None,
    ) -> None:
        self.problem: str
        if isinstance(problem, WrongValueError):
            # AsyncVectorEnv raises a worker's error as ``type(error)(error)``.
            self.__dict__.update(problem.__dict__)
        else:
            self.problem, self.hint, self.path = problem, hint, path
            self.row, self.index = row, index
        super().__init__(self.problem)

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.problem, self.hint, self.path, self.row, self.index)

    def below(self, key: str) -> WrongValueError:
        """Prepend a part to the key."""
        self.path = (key, *self.path)
        return self

    def in_row(self, row: int) -> WrongValueError:
        """Set the index of the env in a batch."""
        self.row = row
        return self


def wrong_value_error(value: object, expected: str) -> WrongValueError:
    """Create the error for a value of another type than its space."""
    return WrongValueError(f"{describe(value)} instead of {expected}", _space_hint())


def missing_value_error(name: object) -> WrongValueError:
    """Create the error for a missing entry of a dict."""
    return WrongValueError(f"no entry {name!r}, which its space declares", _space_hint())


def _space_hint() -> str:
    return "fix the env, or its observation_space: each value must fit the space"


def describe(value: object) -> str:
    """Describe the type of a value briefly, without its content.

    Example:
        >>> describe(None), describe(np.zeros(2)), describe("a")
        ('None', 'a float64 array of shape (2,)', 'a str')
    """
    if value is None:
        return "None"
    if isinstance(value, np.ndarray):
        return describe_array(value.dtype, value.shape)
    name = type(value).__name__
    return f"{'an' if name[0] in 'aeiouAEIOU' else 'a'} {name}"


def describe_array(dtype: DType, shape: Sequence[int]) -> str:
    """Describe arrays of a dtype and shape."""
    article = "an" if str(dtype)[0] in "aeiou" else "a"
    return f"{article} {dtype} array of shape {tuple(shape)}"


def to_array(value: object, dtype: DType, shape: tuple[int, ...]) -> Array:
    """Convert a value to a new array of the dtype and shape of its space.

    The shape ``()`` also accepts one element.

    Raises:
        WrongValueError: The value is not a numeric array, has another shape, or holds a number that
            ``dtype`` cannot represent.
    """
    source = as_numbers(value, describe_array(dtype, shape))
    if source.shape != shape and (shape or source.size != 1):
        problem = f"{describe_array(source.dtype, source.shape)} instead of shape {shape}"
        raise WrongValueError(problem, _space_hint())
    return cast_numbers(source, dtype).reshape(shape)


def as_numbers(value: object, expected: str) -> Array:
    """Convert a value to an array of numbers, which may share memory with it.

    ``expected``: what the space expects instead of a value that is not numeric.
    """
    try:
        # An object array would keep non-numeric values.
        source: Array = np.asarray(value)
        if source.dtype.kind == "O" and isinstance(value, int):
            source = np.asarray(float(value))
    except OverflowError:
        raise WrongValueError(f"an integer of {len(str(value))} digits", _space_hint()) from None
    except (ValueError, TypeError):
        raise wrong_value_error(value, expected) from None
    if source.dtype.kind not in "biuf":
        raise wrong_value_error(_find_non_number(source), expected)
    return source


def _find_non_number(source: Array) -> object:
    """Return the first element that is not a number."""
    if source.dtype.kind != "O":
        return source.flat[0].item() if source.size else source
    for element in source.flat:
        if not isinstance(element, (bool, int, float, np.generic)):
            return element
    return source


def cast_numbers(source: Array, dtype: DType) -> Array:
    """Copy an array of numbers to a dtype."""
    with np.errstate(over="ignore", invalid="ignore"):
        result = source.astype(dtype, order="C")
    lost = find_lost_number(source, result)
    if lost is None:
        return result
    number = source.flat[lost]
    most = np.finfo(dtype).max if dtype.kind == "f" else np.iinfo(dtype).max
    hint = f"fix the env, or declare a wider dtype in its observation_space: {dtype} ends at {most}"
    raise WrongValueError(f"{number:g}, which {dtype} cannot represent", hint)


def find_lost_number(source: Array, result: Array) -> int | None:
    """Return the flat index of the first number that a cast changed by more than rounding."""
    if source.dtype == result.dtype or result.dtype.kind == "b":
        return None
    if result.dtype.kind == "f":
        if source.dtype.kind != "f" or source.dtype.itemsize <= result.dtype.itemsize:
            return None
        if np.isfinite(result).all():
            return None
        lost = np.isinf(result) & np.isfinite(source)
    else:
        if np.can_cast(source.dtype, result.dtype):
            return None
        limits = np.iinfo(result.dtype)
        # A fraction is cut off, as ever; nan compares as outside.
        lost = ~((source >= limits.min) & (source <= limits.max))
    return int(lost.argmax()) if bool(lost.any()) else None


def require_mapping(value: object, names: Sequence[object]) -> Mapping[object, object]:
    """Check that a value is a dict, and return it."""
    if not isinstance(value, Mapping):
        listed = ", ".join(map(repr, names[:3])) + (", ..." if len(names) > 3 else "")
        raise wrong_value_error(value, f"a dict with {listed}")
    return value


def require_elements(value: Any, count: int) -> Sequence[object]:
    """Check that a value is a sequence of ``count`` elements, and return it."""
    try:
        actual = len(value)
    except TypeError:
        raise wrong_value_error(value, f"a tuple of {count}") from None
    if actual != count:
        raise WrongValueError(f"{actual} elements instead of {count}", _space_hint())
    elements: Sequence[object] = value
    return elements


def to_index(value: Any, start: int, count: int) -> int:
    """Return an element of a Discrete space as an index from 0."""
    expected = f"an integer from {start} to {start + count - 1}"
    try:
        index = int(value) - start
    except (TypeError, ValueError, OverflowError):
        raise wrong_value_error(value, expected) from None
    if not 0 <= index < count:
        raise WrongValueError(f"{index + start} instead of {expected}", _space_hint())
    return index

"""Copies of what a call received and returned, taken while the env runs.

A step only takes the copies; they become tensors when a trace is read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import NoneType
from typing import Any, Protocol

import numpy as np
from torch import Tensor

from tdx.foundation.keys import NestedKey

_IMMUTABLE = frozenset({bool, int, float, complex, str, bytes, NoneType, *np.sctypeDict.values()})
_IMMUTABLE -= {np.object_, np.void}
_LARGE = 16_384
"""Bytes above which an observation that a wrapper passes on is compared instead of copied."""
_NUMBERS = "biufc"
_STEP_PARTS = 5

LevelEntries = dict[NestedKey, object]
"""Values by key; objects that are not numbers stay as they are."""
SharedPaths = tuple[tuple[str, ...], ...]
"""Where an observation is in the memory of another one; the empty path is the whole."""


class Below(Protocol):
    """Has the large observation that the last call returned, and its copy."""

    value: Any
    copied: Any


CopyResult = Callable[[Any, Below], tuple[Any, ...] | None]
"""Copies what a method returned, observation first; ``None`` if it has another form."""


def freeze(value: Any) -> Any:
    """Copy what later code could change in place; other objects stay as they are.

    Example:
        >>> array = np.zeros(2)
        >>> frozen = freeze({"x": [array, "text"]})
        >>> array += 1
        >>> frozen
        {'x': [array([0., 0.]), 'text']}
    """
    kind = type(value)
    if kind is np.ndarray:
        return value.copy()
    if kind in _IMMUTABLE:
        return value
    if kind is dict:
        if _IMMUTABLE.issuperset(map(type, value.values())):
            return value.copy()
        return {name: freeze(item) for name, item in value.items()}
    return _freeze_other(value, kind)


def _freeze_other(value: Any, kind: type) -> Any:
    if issubclass(kind, list | tuple):
        if _IMMUTABLE.issuperset(map(type, value)) and kind in (list, tuple):
            return value[:]
        parts = [freeze(item) for item in value]
        if kind is list:
            return parts
        return value._make(parts) if hasattr(kind, "_make") else tuple(parts)
    if isinstance(value, Mapping):
        return {name: freeze(value[name]) for name in value}
    if isinstance(value, str | bytes):
        return value
    if isinstance(value, Tensor):
        return value.detach().clone()
    try:
        array = np.array(value)
    except (ValueError, TypeError):
        return value
    return array if array.dtype.kind in _NUMBERS else value


def copy_action(value: object) -> object:
    """Copy an action; ``None`` if that fails, which must not fail in the code of the user."""
    if type(value) is np.ndarray:
        return value.copy()
    try:
        return freeze(value)
    except Exception:
        return None


def copy_result(result: object, below: Below) -> tuple[object, ...] | None:
    """Copy a result, a tuple whose first part is the observation.

    This call may return the observation of the last one, ``below``, unchanged.

    Returns:
        A tuple; ``None`` if the result is not one or cannot be copied.
    """
    try:
        if type(result) is tuple and len(result) == _STEP_PARTS:
            # Every step passes here: the usual types need no further call.
            observation, reward, terminated, truncated, info = result
            is_small = type(observation) is np.ndarray and observation.nbytes <= _LARGE
            return (
                observation.copy() if is_small else _copy_observation(observation, below),
                reward if type(reward) in _IMMUTABLE else freeze(reward),
                terminated if type(terminated) in _IMMUTABLE else freeze(terminated),
                truncated if type(truncated) in _IMMUTABLE else freeze(truncated),
                {} if not info and type(info) is dict else freeze(info),
            )
        if not isinstance(result, tuple) or not result:
            return None
        return (_copy_observation(result[0], below), *map(freeze, result[1:]))
    except Exception:
        return None


def _copy_observation(value: object, below: Below) -> object:
    if type(value) is not np.ndarray:
        return freeze(value)
    if value.nbytes <= _LARGE:
        return value.copy()
    if value is below.value and _has_same_bytes(value, below.copied):
        return below.copied
    below.value, below.copied = value, value.copy()
    return below.copied


def _has_same_bytes(one: Any, other: Any) -> bool:
    if not (one.flags.c_contiguous and other.flags.c_contiguous) or one.dtype.hasobject:
        return False
    return bool(np.array_equal(one.view(np.uint8), other.view(np.uint8)))


def is_new_memory(before: object, after: object) -> bool:
    """Return True if both observations are arrays that own their memory, and different ones."""
    return (
        before is not after
        and type(before) is np.ndarray
        and type(after) is np.ndarray
        and before.base is None
        and after.base is None
    )


def shared_paths(before: object, after: object, path: tuple[str, ...] = ()) -> SharedPaths:
    """Return where an observation is in the memory of the previous one."""
    if type(after) is np.ndarray:
        if type(before) is not np.ndarray:
            return ()
        if is_new_memory(before, after):
            return ()
        is_shared = before is after or _address(before) == _address(after)
        return (path,) if is_shared else ()
    try:
        return _shared_parts(before, after, path)
    except Exception:
        return ()


def _shared_parts(before: object, after: object, path: tuple[str, ...]) -> SharedPaths:
    if isinstance(after, Mapping) and isinstance(before, Mapping):
        if before is after:
            return (path,)
        return tuple(
            shared
            for name, value in after.items()
            if name in before
            for shared in shared_paths(before[name], value, (*path, str(name)))
        )
    is_shared = (
        isinstance(before, Tensor)
        and isinstance(after, Tensor)
        and before.data_ptr() == after.data_ptr()
    )
    return (path,) if is_shared else ()


def _address(array: Any) -> int:
    address: int = array.__array_interface__["data"][0]
    return address

"""Check the arguments of transforms, envs and buffers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from tdx.foundation.errors import ArgumentError, UnknownNameError, did_you_mean


def check_integer(value: object, name: str, minimum: int, hint: str) -> int:
    """Return an integer argument of at least ``minimum``."""
    if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
        raise ArgumentError(
            f"{name} must be an integer of at least {minimum}, got {value!r}", hint=hint
        )
    return value


def check_number(value: Any, name: str, hint: str) -> float | None:
    """Return a number argument, given as a number, a tensor with one element, or ``None``."""
    if value is None:
        return None
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not is_number and not (isinstance(value, Tensor) and value.numel() == 1):
        raise ArgumentError(f"{name} must be a number, got {value!r}", hint=hint)
    number: float = value.item() if isinstance(value, Tensor) else value
    if math.isnan(number):
        raise ArgumentError(f"{name} must be a number, got NaN", hint=hint)
    return number


def check_range(low: float | None, high: float | None, names: tuple[str, str]) -> None:
    """Check that a lower bound is not above an upper bound."""
    if low is not None and high is not None and low > high:
        raise ArgumentError(f"{names[0]} ({low}) is above {names[1]} ({high})", hint="swap the two")


def check_positive(value: object, name: str, maximum: float, hint: str) -> float:
    """Return a number above 0, at most ``maximum``, as a float."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not is_number or not 0 < value <= maximum:  # type: ignore[operator]
        limit = "" if math.isinf(maximum) else f" and at most {maximum:g}"
        raise ArgumentError(f"{name} must be a number above 0{limit}, got {value!r}", hint=hint)
    return float(value)  # type: ignore[arg-type]


def check_choice(value: object, name: str, choices: Sequence[str]) -> None:
    """Check that an argument is one of several names."""
    if value not in choices:
        raise UnknownNameError(
            f"unknown {name} {value!r}",
            hint=did_you_mean(str(value), choices, f"one of {', '.join(choices)}"),
        )


def check_dim(value: object, name: str, allow_positive: bool) -> int:
    """Return a dim argument, which is negative unless ``allow_positive``."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise ArgumentError(
            f"{name} must be an integer, got {value!r}", hint="for example -1 for the last dim"
        )
    if value >= 0 and not allow_positive:
        raise ArgumentError(
            f"{name} must be negative, got {value}",
            hint="count from the end, so that batch dims don't matter, or pass "
            "allow_positive_dim=True to count from the first dim after them",
        )
    return value


def check_name(value: object, argument: str, kind: str) -> str:
    """Return the name of an entry that is written next to done flags."""
    if not isinstance(value, str):
        raise ArgumentError(
            f"{argument} must be a string, got {value!r}",
            hint=f"pass the name alone: nested {kind} are written next to their done flags",
        )
    return value


def check_finite(value: Any, name: str) -> Tensor:
    """Return a number, a sequence of numbers or a tensor as a floating tensor."""
    try:
        if isinstance(value, (bool, str)):
            raise TypeError
        result = value if isinstance(value, Tensor) else torch.tensor(value)
    except (TypeError, ValueError, RuntimeError):
        raise ArgumentError(
            f"{name} must be a number or a tensor, got {value!r}",
            hint="for example 0.5, or torch.tensor([0.5, 2.0])",
        ) from None
    if not result.is_floating_point():
        result = result.to(torch.get_default_dtype())
    if not bool(result.isfinite().all()):
        raise ArgumentError(f"{name} must be finite, got {value!r}", hint="remove NaN and infinity")
    return result

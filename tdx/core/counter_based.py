"""Random numbers that are a function of a key and a position, in integer operators of torch.

A generator hands out its numbers one after another, so that a reset of some rows changes what the
next one draws. A row whose numbers depend only on its own position gets the same ones on every
device, without the host knowing which rows were reset.
"""

from __future__ import annotations

import math
import operator

import torch
from torch import Tensor


def _signed(word: int) -> int:
    """Return the int64 with the bits of an integer modulo 2**64."""
    return (word + 2**63) % 2**64 - 2**63


# The increment and the two multipliers of SplitMix64 (Steele, Lea and Flood, 2014).
_INCREMENT = _signed(0x9E3779B97F4A7C15)
_ROUNDS = ((30, _signed(0xBF58476D1CE4E5B9)), (27, _signed(0x94D049BB133111EB)))


def row_keys(seed: int, shape: tuple[int, ...], device: torch.device | None) -> Tensor:
    """Return a key for each element of a shape, int64; element ``i`` has the key of ``seed + i``.

    The seed is modulo 2**64.
    """
    rows = torch.arange(math.prod(shape), device=device).reshape(shape)
    return _mix(rows + _signed(operator.index(seed)))


def uniform_at(keys: Tensor, first: Tensor, count: int, dtype: torch.dtype) -> Tensor:
    """Return consecutive uniform numbers of streams, ``[count, *B]``, equal on every device.

    The streams have int64 keys ``[*B]``, and positions ``first`` of the first numbers. The numbers
    are multiples of the epsilon of the dtype in ``[-1, 1)``.
    """
    # The first sum is the only one over all numbers: the rest is done for each stream, or position.
    steps = torch.arange(1, count + 1, device=keys.device).mul_(_INCREMENT)
    bits = _mix((keys + first * _INCREMENT) + steps.reshape(-1, *[1] * keys.ndim))
    epsilon = torch.finfo(dtype).eps
    # A shift that repeats the sign leaves the leading bits as a signed number.
    return (bits >> (63 + round(math.log2(epsilon)))).to(dtype).mul_(epsilon)


def _mix(bits: Tensor) -> Tensor:
    """Scramble int64 words in place: each bit of the result depends on all of the word."""
    for shift, factor in _ROUNDS:
        bits.bitwise_xor_(_shift_right(bits, shift)).mul_(factor)
    return bits.bitwise_xor_(_shift_right(bits, 31))


def _shift_right(bits: Tensor, count: int) -> Tensor:
    # `>>` repeats the sign.
    return (bits >> count).bitwise_and_(2 ** (64 - count) - 1)


def new_streams(shape: tuple[int, ...], device: torch.device | None) -> Tensor:
    """Return a stream for each element of a shape: its key and its position, int64 ``[*shape, 2]``.

    The keys follow from one number of torch's generator of the host, whatever the device.
    """
    seed = int(torch.randint(torch.iinfo(torch.int64).max, (), device="cpu"))
    keys = row_keys(seed, shape, device)
    return torch.stack([keys, torch.zeros_like(keys)], -1)


def draw(streams: Tensor, count: int, rows: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Return numbers of each stream, and the streams after the draw.

    Args:
        streams: Result of :func:`new_streams`, ``[*B, 2]``.
        count: Numbers of each stream.
        rows: Streams that advance, bool ``[*B]``; the numbers of the others are drawn again next
            time. ``None``: all.

    Returns:
        Numbers from ``[0, 1)``, float64 ``[count, *B]``, and the streams.
    """
    keys, first = streams.unbind(-1)
    numbers = uniform_at(keys, first, count, torch.float64).add_(1).div_(2)
    after = first + count * (1 if rows is None else rows)
    return numbers, torch.stack([keys, after], -1)

"""Curves in braille: two dots across and four down in each cell."""

from __future__ import annotations

from collections.abc import Sequence

_LEFT, _RIGHT = (0x40, 0x04, 0x02, 0x01), (0x80, 0x20, 0x10, 0x08)


def _bits(four: int, dots: Sequence[int]) -> int:
    return sum(dot for n, dot in enumerate(dots) if four >> n & 1)


_CELLS = [chr(0x2800 + _bits(both >> 4, _LEFT) + _bits(both & 15, _RIGHT)) for both in range(256)]
Numbers = Sequence[float | None]


def braille(lows: Numbers, highs: Numbers, width: int, height: int) -> list[str]:
    """A band from low to high as lines of text.

    Args:
        lows: the smallest number of each part; none where there is none.
        highs: the largest of each.
        width: in cells; a part takes half of one where there are enough parts.
        height: in cells.

    Example:
        >>> braille([0, 1, 2, 3], [0, 1, 2, 3], 2, 1)
        ['⡠⠊']
    """
    known = [each for each in (*lows, *highs) if each is not None]
    if not known or width < 1 or height < 1:
        return [" " * width for _ in range(height)]
    least, most = min(known), max(known)
    tall = height * 4 - 1
    scale = tall / (most - least) if most > least else 0.0
    middle = 0 if scale else tall // 2
    columns: list[int] = []
    before: tuple[int, int] | None = None
    for x in range(width * 2):
        at = x * len(lows) // (width * 2)
        low, high = lows[at], highs[at]
        if low is None or high is None:
            before = None
            columns.append(0)
            continue
        bottom = round((low - least) * scale) + middle
        top = round((high - least) * scale) + middle
        first, last = _joined(bottom, top, before)
        columns.append((1 << last + 1) - (1 << first) if last >= first else 0)
        before = bottom, top
    return [_row(columns, 4 * up) for up in reversed(range(height))]


def _joined(bottom: int, top: int, before: tuple[int, int] | None) -> tuple[int, int]:
    """From where to where a column is filled, so that it meets the one before."""
    if before is not None:
        if before[1] < bottom:
            bottom = before[1] + 1
        elif before[0] > top:
            top = before[0] - 1
    return bottom, top


def _row(columns: Sequence[int], bottom: int) -> str:
    """A line of cells; each column is a number whose lowest bit is its lowest dot."""
    pairs = zip(columns[::2], columns[1::2], strict=True)
    return "".join(
        _CELLS[(left >> bottom & 15) << 4 | right >> bottom & 15] for left, right in pairs
    )

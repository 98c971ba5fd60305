"""Curves in braille: two dots across and four down in each cell."""

from __future__ import annotations

from collections.abc import Sequence

_DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
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
    cells = [[0] * width for _ in range(height)]
    before: tuple[int, int] | None = None
    for x in range(width * 2):
        at = x * len(lows) // (width * 2)
        low, high = lows[at], highs[at]
        if low is None or high is None:
            before = None
            continue
        bottom = round((low - least) * scale) + middle
        top = round((high - least) * scale) + middle
        _fill(cells, x, *_joined(bottom, top, before), tall)
        before = bottom, top
    return ["".join(chr(0x2800 + cell) for cell in row) for row in cells]


def _joined(bottom: int, top: int, before: tuple[int, int] | None) -> tuple[int, int]:
    """From where to where a column is filled, so that it meets the one before."""
    if before is not None:
        if before[1] < bottom:
            bottom = before[1] + 1
        elif before[0] > top:
            top = before[0] - 1
    return bottom, top


def _fill(cells: list[list[int]], x: int, bottom: int, top: int, tall: int) -> None:
    for y in range(bottom, top + 1):
        row, dot = divmod(tall - y, 4)
        cells[row][x // 2] |= _DOTS[dot][x % 2]

"""Number formatting and text bars."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from tdx.foundation.text import three_digits

_EIGHTHS = " ▁▂▃▄▅▆▇█"
_PARTS = " ▏▎▍▌▋▊▉█"


Unit = Literal["µs", "ms", "s"]
_MICROS: dict[Unit, float] = {"µs": 1.0, "ms": 1e3, "s": 1e6}


NUMBER_WIDTH = 9
"""Width of a column of numbers with four digits, with a space before them."""


def format_number(number: float | None) -> str:
    """Format a number with four significant digits, in less than a column.

    Example:
        >>> format_number(0.00033157), format_number(-21.4), format_number(None)
        ('3.3e-04', '-21.4', '–')
    """
    if number is None:
        return "–"
    text = f"{number:.4g}"
    return text if len(text) < NUMBER_WIDTH else f"{number:.1e}"


def choose_unit(micros: float) -> Unit:
    """Return the unit in which a time in µs has at most four digits.

    Example:
        >>> choose_unit(9_999), choose_unit(10_000)
        ('µs', 'ms')
    """
    return "µs" if abs(micros) < 9_999.5 else "ms" if abs(micros) < 9_999_500 else "s"


def format_time(micros: float, unit: Unit) -> str:
    """Format a time in µs as a number in a unit, with three significant digits or four.

    Example:
        >>> format_time(18_500, "ms")
        '18.5'
    """
    return three_digits(micros / _MICROS[unit])


def format_duration(micros: float) -> str:
    """Format a time in µs with a suitable unit.

    Example:
        >>> format_duration(12.34), format_duration(18_500), format_duration(2.5e7)
        ('12.3 µs', '18.5 ms', '25.0 s')
    """
    unit = choose_unit(micros)
    return f"{format_time(micros, unit)} {unit}"


def describe_idle(causes: Mapping[str, float]) -> str:
    """Return idle times in µs by their cause.

    Example:
        >>> describe_idle({"nothing launched": 12.0, "between kernels": 0.5}), describe_idle({})
        ('idle 12.5 µs (12.0 nothing launched, 0.50 between kernels)', 'never idle')
    """
    if not causes:
        return "never idle"
    unit = choose_unit(sum(causes.values()))
    parts = ", ".join(f"{format_time(us, unit)} {cause}" for cause, us in causes.items())
    return f"idle {format_time(sum(causes.values()), unit)} {unit} ({parts})"


def format_percent(value: float) -> str:
    """Format a relative change with its sign, or as a factor from ten times on.

    Example:
        >>> format_percent(-0.123), format_percent(0.5), format_percent(19.0)
        ('-12%', '+50%', '×20')
    """
    return f"×{format_count(round(value + 1))}" if value >= 9 else f"{value:+.0%}"


def format_count(value: float) -> str:
    """Format a number, which is often whole, with at most four digits.

    Example:
        >>> [format_count(each) for each in (2.0, 0.25, 0.0012, 1234.0, 42701.0, 2.5e6)]
        ['2', '0.25', '0.001', '1,234', '42.7k', '2.50M']
    """
    for size, letter in ((1e6, "M"), (1e3, "k")):
        if value >= max(size * 0.99995, 9_999.5):
            return f"{three_digits(value / size)}{letter}"
    if 0 < value < 0.1:
        return f"{value:.1g}"
    return f"{value:,.0f}" if value == round(value) or value >= 100 else f"{value:.2f}"


def draw_bar(share: float, width: int) -> str:
    """Draw a bar that fills a share of the width, exact to an eighth of a cell.

    Example:
        >>> draw_bar(0.5, 4), draw_bar(0.3, 4)
        ('██  ', '█▎  ')
    """
    eighths = round(max(0.0, min(1.0, share)) * width * 8)
    full, rest = divmod(eighths, 8)
    return ("█" * full + (_PARTS[rest] if rest else "")).ljust(width)


def draw_histogram(counts: Sequence[int], width: int, height: int) -> list[str]:
    """Draw a histogram as lines of text, top line first; only empty bins look empty.

    The width is that of a bin in cells.

    Example:
        >>> draw_histogram([1, 4, 2], 1, 2)
        [' █ ', '▄██']
    """
    most = max(counts, default=0) or 1
    eighths = [max(1, round(each / most * height * 8)) if each else 0 for each in counts]
    lines = []
    for row in reversed(range(height)):
        signs = (_EIGHTHS[max(0, min(8, each - row * 8))] for each in eighths)
        lines.append("".join(sign * width for sign in signs))
    return lines

"""Number formatting and text bars of the Profile tab."""

from __future__ import annotations

from collections.abc import Sequence

_EIGHTHS = " ▁▂▃▄▅▆▇█"
_PARTS = " ▏▎▍▌▋▊▉█"


def format_micros(value: float) -> str:
    """Format a time in µs with three significant digits, in millions (``M``) from a second on.

    Example:
        >>> [format_micros(each) for each in (0.0123, 1.5, 12.34, 123.4, 12345.6, 2761044)]
        ['0.012', '1.50', '12.3', '123', '12,346', '2.76M']
    """
    size = abs(value)
    if size >= 999_999.5:
        return f"{format_micros(value / 1e6)}M"
    if size >= 99.95:
        return f"{value:,.0f}"
    return f"{value:.1f}" if size >= 9.995 else f"{value:.2f}" if size >= 0.1 else f"{value:.3f}"


def format_delta(value: float) -> str:
    """Format a difference in µs with its sign.

    Example:
        >>> format_delta(-3.14159), format_delta(0.0)
        ('-3.14', '+0.000')
    """
    return f"{'-' if value < 0 else '+'}{format_micros(abs(value))}"


def format_percent(value: float) -> str:
    """Format a share as a whole percentage with its sign.

    Example:
        >>> format_percent(-0.123)
        '-12 %'
    """
    return f"{'-' if value < 0 else '+'}{abs(value):.0%}".replace("%", " %")


def format_count(value: float) -> str:
    """Format a number of calls, which is often whole.

    Example:
        >>> [format_count(each) for each in (2.0, 0.25, 0.0012, 1234.0)]
        ['2', '0.25', '0.001', '1,234']
    """
    if 0 < value < 0.1:
        return f"{value:.1g}"
    return f"{value:,.0f}" if value == round(value) or value >= 100 else f"{value:.2f}"


def format_bytes(size: float) -> str:
    """Format a size with a suitable unit.

    Example:
        >>> [format_bytes(each) for each in (0, 512, 2048, 5_000_000)]
        ['0', '512 B', '2.0 kB', '4.8 MB']
    """
    if abs(size) < 0.5:
        return "0"
    for unit in ("B", "kB", "MB"):
        if abs(size) < 1024:
            return f"{size:.0f} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} GB"


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

    Args:
        counts: Count of each bin.
        width: Width of a bin in cells.
        height: Number of lines.

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

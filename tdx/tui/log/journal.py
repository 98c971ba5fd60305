"""What is kept of what happens, within bounds."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from heapq import merge
from typing import Literal

from tdx.tui.log.plain import plain_lines, plain_text

Severity = Literal["information", "output", "warning", "error"]
MOST_KEPT, MOST_OUTPUT = 1_000, 1_000
"""Entries that are kept: of what happened, and of what workers have printed."""
MOST_AT_ONCE = 200
"""Lines that are taken of what was printed at once; of more than that the last ones."""
MOST_DETAILS = 20_000
"""Characters of a traceback that are kept: the last ones."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One thing that happened.

    Args:
        number: from 1; the order in which they happened.
        at: when, in seconds since the epoch; the last time where it happened several times.
        severity: how bad it is; ``output`` is what a worker has printed.
        source: who says so: ``app``, or the name of a worker.
        text: what it was, on one line.
        details: the rest: a hint, a traceback.
        times: how often it happened in a row.
    """

    number: int
    at: float
    severity: Severity
    source: str
    text: str
    details: str = ""
    times: int = 1

    @property
    def time(self) -> str:
        """When it was, on the clock."""
        return datetime.fromtimestamp(self.at).strftime("%H:%M:%S")

    @property
    def whole(self) -> str:
        """All of it as text."""
        times = f" (×{self.times})" if self.times > 1 else ""
        head = f"{self.time} {self.severity:<11} {self.source:<8} {self.text}{times}"
        return "\n".join([head, *(f"    {line}" for line in self.details.splitlines())])


class Journal:
    r"""The entries, the oldest first; the oldest are dropped.

    Args:
        now: gives the time.

    Example:
        >>> journal = Journal()
        >>> journal.printed("live", "hello\nhello\n")
        >>> [(entry.source, entry.text, entry.times) for entry in journal.entries]
        [('live', 'hello', 2)]
    """

    def __init__(self, now: Callable[[], float] = time.time) -> None:
        self._now = now
        self._count = 0
        self._said: deque[Entry] = deque(maxlen=MOST_KEPT)
        self._printed: deque[Entry] = deque(maxlen=MOST_OUTPUT)
        self._watchers: list[Callable[[], None]] = []

    @property
    def entries(self) -> list[Entry]:
        """All that are kept."""
        return list(merge(self._said, self._printed, key=lambda entry: entry.number))

    def record(
        self,
        text: str,
        *,
        source: str = "app",
        severity: Severity = "information",
        details: str = "",
    ) -> None:
        """Keep something that happened.

        Args:
            text: what it was; lines behind the first one are details.
            source: who says so.
            severity: how bad it is.
            details: the rest.
        """
        first, *more = plain_lines(text) or [""]
        rest = plain_text(details[-MOST_DETAILS:]).strip("\n")
        told = "\n".join([*more, *([rest] if rest else [])])
        self._add(self._said, severity, source, first, told)
        self._changed()

    def printed(self, worker: str, text: str, left_out: int = 0) -> None:
        """Keep what a worker has written to its output.

        Args:
            worker: its name.
            text: what it wrote.
            left_out: how many bytes before that were too many to be read.
        """
        lines = plain_lines(text)
        few = lines[-MOST_AT_ONCE:]
        gone = len(lines) - len(few)
        if gone or left_out:
            much = f"{left_out:,} bytes" if left_out else f"{gone:,} lines"
            self._add(self._printed, "output", worker, f"… {much} left out …", "")
        for line in few:
            self._add(self._printed, "output", worker, line, "")
        self._changed()

    def clear(self) -> None:
        """Forget everything."""
        self._said.clear()
        self._printed.clear()
        self._changed()

    def watch(self, callback: Callable[[], None]) -> None:
        """Call this whenever something has changed."""
        self._watchers.append(callback)

    def _add(
        self, kept: deque[Entry], severity: Severity, source: str, text: str, details: str
    ) -> None:
        self._count += 1
        entry = Entry(self._count, self._now(), severity, source, text, details)
        last = kept[-1] if kept else None
        same = last is not None and replace(entry, number=0, at=0.0, times=1) == replace(
            last, number=0, at=0.0, times=1
        )
        if last is not None and same and last.number == self._count - 1:
            kept[-1] = replace(entry, times=last.times + 1)
        else:
            kept.append(entry)

    def _changed(self) -> None:
        for callback in self._watchers:
            callback()


def as_text(entries: Iterable[Entry]) -> str:
    """Entries as they are copied."""
    return "\n".join(entry.whole for entry in entries) + "\n"

"""Journal: a bounded list of what happened, cleaned of terminal escape sequences."""

from __future__ import annotations

import re
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime
from heapq import merge
from typing import Literal

from tdx.foundation.text import escape_control_characters
from tdx.tui.backend.messages import WorkerEvent

MAX_LINE_LENGTH = 2_000
"""Maximum number of characters of a line."""
_ESCAPE_SEQUENCE = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]"  # colors and cursors
    r"|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?"  # titles and links
    r"|\x1b[PX^_][^\x1b]*(?:\x1b\\)?"
    r"|\x1b[ -/]*[0-~]"
)


def clean_lines(text: str) -> list[str]:
    r"""Return the lines of a text without escape sequences.

    Of a line that was overwritten, such as a progress bar, the last state is returned.

    Example:
        >>> clean_lines("\x1b[31mred\x1b[0m\n 1 %\r 50 %\r100 %\n\x07bell\n")
        ['red', '100 %', '\\x07bell']
    """
    lines = _ESCAPE_SEQUENCE.sub("", text.replace("\r\n", "\n")).split("\n")
    return [clean_line(line.rstrip("\r").rpartition("\r")[2]) for line in lines if line.strip()]


def clean_line(line: str) -> str:
    """Escape control characters and expand tabs."""
    if not line.isprintable():
        line = escape_control_characters(_ESCAPE_SEQUENCE.sub("", line).expandtabs(4))
    return line if len(line) <= MAX_LINE_LENGTH else f"{line[: MAX_LINE_LENGTH - 1]}…"


Severity = Literal["information", "output", "warning", "error"]
MAX_ENTRIES, MAX_OUTPUT_ENTRIES = 1_000, 1_000
"""Maximum number of entries: events, and output of workers."""
MAX_LINES_PER_WRITE = 200
"""Maximum number of lines taken from one write; the last ones are kept."""
_RECENT = 5
"""Number of entries in which the same error is not listed again."""
MAX_DETAILS = 20_000
"""Maximum number of characters of a traceback; the last ones are kept."""


@dataclass(frozen=True, slots=True)
class LogEntry:
    """An entry of the log."""

    number: int  # position in time, from 1
    at: float  # time in seconds since the epoch; the last time if it happened repeatedly
    severity: Severity
    source: str  # ``app``, or the name of a worker
    text: str  # what happened, on one line
    details: str = ""  # hint and traceback
    times: int = 1  # number of consecutive repetitions

    @property
    def time(self) -> str:
        """Time of day."""
        return datetime.fromtimestamp(self.at).strftime("%H:%M:%S")

    @property
    def full_text(self) -> str:
        """The entry as text."""
        times = f" (×{self.times})" if self.times > 1 else ""
        head = f"{self.time} {self.severity:<11} {self.source:<8} {self.text}{times}"
        return "\n".join([head, *(f"    {line}" for line in self.details.splitlines())])


class Journal:
    r"""Entries, the oldest first; the oldest are dropped if there are too many.

    Example:
        >>> journal = Journal()
        >>> journal.record_output("live", "hello\nhello\n")
        >>> [(entry.source, entry.text, entry.times) for entry in journal.entries]
        [('live', 'hello', 2)]
    """

    def __init__(self, now: Callable[[], float] = time.time) -> None:
        self._now = now
        self._count = 0
        self._events: deque[LogEntry] = deque(maxlen=MAX_ENTRIES)
        self._output: deque[LogEntry] = deque(maxlen=MAX_OUTPUT_ENTRIES)
        self._callbacks: list[Callable[[], None]] = []

    @property
    def entries(self) -> list[LogEntry]:
        """All entries."""
        return list(merge(self._events, self._output, key=lambda entry: entry.number))

    def record(
        self,
        text: str,
        *,
        source: str = "app",
        severity: Severity = "information",
        details: str = "",
    ) -> None:
        """Record an event."""
        first, *more = clean_lines(text) or [""]
        rest = "\n".join(map(clean_line, details[-MAX_DETAILS:].split("\n"))).strip("\n")
        rest = "\n".join([*more, *([rest] if rest else [])])
        if severity == "error":
            # A worker reports an error, and the chain names the stage that it belongs to.
            recent = [entry for entry in self._events if self._count - entry.number < _RECENT]
            errors = [entry for entry in recent if entry.severity == "error"]
            if any(entry.text.endswith(f": {first}") for entry in errors):
                return
            for entry in errors:
                if first.endswith(f": {entry.text}"):
                    self._events.remove(entry)
        self._add(self._events, severity, source, first, rest)
        self._notify()

    def record_output(self, worker: str, text: str, skipped_bytes: int = 0) -> None:
        """Record the output of a worker, after a number of bytes that were too many to read."""
        lines = clean_lines(text)
        latest = lines[-MAX_LINES_PER_WRITE:]
        skipped_lines = len(lines) - len(latest)
        if skipped_lines or skipped_bytes:
            much = f"{skipped_bytes:,} bytes" if skipped_bytes else f"{skipped_lines:,} lines"
            self._add(self._output, "output", worker, f"… {much} left out …", "")
        for line in latest:
            self._add(self._output, "output", worker, line, "")
        self._notify()

    def record_worker_event(self, event: WorkerEvent) -> None:
        """Record what a worker has done."""
        if event.kind == "printed":
            self.record_output(event.worker, event.text, event.skipped_bytes)
        else:
            severity: Severity = "error" if event.kind == "failed" else "information"
            self.record(event.text, source=event.worker, severity=severity, details=event.details)

    def clear(self) -> None:
        """Delete all entries."""
        self._events.clear()
        self._output.clear()
        self._notify()

    def subscribe(self, callback: Callable[[], None]) -> None:
        """Call a function after each change."""
        self._callbacks.append(callback)

    def _add(
        self, kept: deque[LogEntry], severity: Severity, source: str, text: str, details: str
    ) -> None:
        self._count += 1
        entry = LogEntry(self._count, self._now(), severity, source, text, details)
        last = kept[-1] if kept else None
        same = last is not None and replace(entry, number=0, at=0.0, times=1) == replace(
            last, number=0, at=0.0, times=1
        )
        if last is not None and same and last.number == self._count - 1:
            kept[-1] = replace(entry, times=last.times + 1)
        else:
            kept.append(entry)

    def _notify(self) -> None:
        for callback in self._callbacks:
            callback()

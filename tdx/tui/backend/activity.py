"""What a worker is doing, in shared memory: readable while it hangs and after it has died."""

from __future__ import annotations

import mmap
import os
import struct
import time
from dataclasses import dataclass

_RECORD = struct.Struct("<qq120s")
"""Beginning in nanoseconds (0: idle), completed steps, and text."""
_MAX_TEXT = 120


@dataclass(frozen=True, slots=True)
class Activity:
    """A call that a worker is in."""

    text: str  # the call: ``env.step of step 15``
    steps: int  # number of steps completed before it
    seconds: float  # time since it began


class ActivityRecord:
    """A record that one process writes, in less than a microsecond, and another one reads.

    The file that they share may be deleted once both have opened it; without one, nothing is
    shared.

    Example:
        >>> record = ActivityRecord()
        >>> record.begin("env.step of step 15", 14)
        >>> record.read().text
        'env.step of step 15'
        >>> record.end()
        >>> record.read() is None
        True
    """

    def __init__(self, path: str | None = None) -> None:
        self._memory: mmap.mmap | bytearray = bytearray(_RECORD.size)
        if path is not None:
            with open(path, "r+b") as file:
                if os.fstat(file.fileno()).st_size < _RECORD.size:
                    file.truncate(_RECORD.size)
                self._memory = mmap.mmap(file.fileno(), _RECORD.size)

    def begin(self, text: str, steps: int) -> None:
        """Record that a call begins, after a number of completed steps."""
        _RECORD.pack_into(self._memory, 0, time.monotonic_ns(), steps, text.encode()[:_MAX_TEXT])

    def end(self) -> None:
        """Record that the call has returned."""
        _RECORD.pack_into(self._memory, 0, 0, 0, b"")

    def read(self) -> Activity | None:
        """Return the call that is running; ``None`` if there is none."""
        record = self._memory[:]
        # The other process may have been writing.
        while (again := self._memory[:]) != record:
            record = again
        begin, steps, text = _RECORD.unpack(record)
        if not begin:
            return None
        # The monotonic clock is the same in all processes.
        seconds = max(0, time.monotonic_ns() - begin) / 1e9
        return Activity(text.rstrip(b"\0").decode(errors="ignore"), steps, seconds)

    def close(self) -> None:
        """Keep what was last recorded, and give up the shared memory.

        Windows deletes no file that is in use.
        """
        memory, self._memory = self._memory, bytearray(self._memory[:])
        if isinstance(memory, mmap.mmap):
            memory.close()

"""What a worker writes to its output: its end is kept, however much it is."""

from __future__ import annotations

import fcntl
import os
import tempfile
from contextlib import suppress
from typing import IO

KEPT = 64 * 1024
"""Bytes of the end that are kept."""
MOST = 1024 * 1024
"""Bytes above which what came before the end is thrown away."""


class Output:
    """A file without a name that processes write to, for as long as somebody holds it."""

    def __init__(self) -> None:
        self._told = 0
        self.file: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed by close()
        # Whoever writes writes at the end, also where the file was made shorter meanwhile.
        flags = fcntl.fcntl(self.file, fcntl.F_GETFL)
        fcntl.fcntl(self.file, fcntl.F_SETFL, flags | os.O_APPEND)

    def end(self, most: int = KEPT) -> str:
        """The end of what was written.

        Args:
            most: how many bytes of it.

        Example:
            >>> output = Output()
            >>> _ = os.write(output.file.fileno(), b"first, then last")
            >>> output.end(4)
            'last'
            >>> output.close()
        """
        return self._end(most).decode(errors="replace").strip()

    def fresh(self, *, last: bool = False) -> tuple[str, int]:
        """What was written since this was asked before, in whole lines.

        Args:
            last: whether nothing more will come, so that a line need not be whole.

        Returns:
            The text, and how many bytes before it are left out because they are too many.

        Example:
            >>> output = Output()
            >>> _ = os.write(output.file.fileno(), b"one line, and half a")
            >>> output.fresh(), output.fresh(last=True)
            (('', 0), ('one line, and half a', 0))
            >>> output.close()
        """
        size = self._size()
        self._told = min(self._told, size)
        there = size - self._told
        left_out = max(0, there - KEPT)
        found = self._end(there - left_out)
        whole = found if last or left_out else found[: found.rfind(b"\n") + 1]
        self._told = size - len(found) + len(whole)
        return whole.decode(errors="replace"), left_out

    def trim(self) -> None:
        """Throw away all but the end where it has become much: a disk is not without end."""
        if self._size() > MOST:
            end = self._end(KEPT)
            os.ftruncate(self.file.fileno(), 0)
            with suppress(OSError):  # the disk is full
                os.write(self.file.fileno(), end)
            self._told = self._size()

    def close(self) -> None:
        """Give the file back."""
        self.file.close()

    def _size(self) -> int:
        return os.fstat(self.file.fileno()).st_size

    def _end(self, most: int) -> bytes:
        return os.pread(self.file.fileno(), most, max(0, self._size() - most))

"""Source files of tdx that are executed in a block."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

ROOT = Path(__file__).parents[1]


@contextmanager
def called_files() -> Iterator[set[str]]:
    """Collect the files of tdx whose functions are called in a block, without imports."""
    package = f"{ROOT / 'tdx'}/"
    files: set[str] = set()

    def record(frame: FrameType, event: str, argument: object) -> None:
        code = frame.f_code
        if event == "call" and code.co_name != "<module>" and code.co_filename.startswith(package):
            files.add(code.co_filename.removeprefix(package))

    previous = sys.getprofile()
    sys.setprofile(record)
    try:
        yield files
    finally:
        sys.setprofile(previous)

"""Where the host waits for a CUDA device, by torch's own warnings."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import torch

_WAITS = "called a synchronizing CUDA operation"
_PROTOTYPE = "Synchronization debug mode is a prototype"
_ROOT = Path(__file__).parents[3]
_NOT_THE_PLACE = ("torch.", "torchvision.", "tensordict.", "warnings.", "tdx.profiling.")


@contextmanager
def watched_syncs(told: Callable[[str], None]) -> Iterator[None]:
    """Have a function told the place, ``file:line``, of each wait in the block.

    torch warns of each; other warnings are as ever. What waits without torch's knowing, such as
    a library of its own, is not seen.
    """
    before = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings():
        show = warnings.showwarning

        def shown(
            message: Warning | str,
            category: type[Warning],
            filename: str,
            lineno: int,
            file: Any = None,
            line: str | None = None,
        ) -> None:
            if _WAITS in str(message):
                told(_place(sys._getframe(1)) or f"{filename}:{lineno}")
            else:
                show(message, category, filename, lineno, file, line)

        warnings.filterwarnings("always", message=_WAITS)
        warnings.filterwarnings("ignore", message=_PROTOTYPE)
        warnings.showwarning = shown
        torch.cuda.set_sync_debug_mode("warn")
        try:
            yield
        finally:
            torch.cuda.set_sync_debug_mode(before)


def _place(frame: FrameType | None) -> str | None:
    """The innermost line that is neither torch's nor the profiler's."""
    while frame is not None:
        module = f"{frame.f_globals.get('__name__', '')}."
        if not module.startswith(_NOT_THE_PLACE):
            return f"{_short(frame.f_code.co_filename)}:{frame.f_lineno}"
        frame = frame.f_back
    return None


def _short(filename: str) -> str:
    """A path from the place that a person looks from."""
    path = Path(filename)
    for root in (_ROOT, Path.cwd()):
        if path.is_relative_to(root):
            return path.relative_to(root).as_posix()
    return filename

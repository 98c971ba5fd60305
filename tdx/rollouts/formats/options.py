"""What can be asked of an export."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Options:
    """What can be asked of an export, beside where and what.

    Args:
        episodes: which ones, by their place in ``tdx show``; all by default.
        fps: frames a second.
        split: whether each episode gets a file of its own.
        lossy: whether a film is to be small and to play everywhere, rather than to be exact.
        name: of the file or folder.
    """

    episodes: tuple[int, ...] | None = None
    fps: int = 30
    split: bool = False
    lossy: bool = False
    name: str = ""

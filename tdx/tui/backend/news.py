"""What becomes of the workers, for whoever keeps a log."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

_NAMES = {
    "look": "the specs",
    "live": "the rollout",
    "profile": "the profile",
    "dump": "the dump",
}


def name_of(worker: str) -> str:
    """What a worker is for, in words."""
    return _NAMES.get(worker, worker)


@dataclass(frozen=True, slots=True)
class News:
    """Something that a worker did, or that was done to it.

    Args:
        worker: its name.
        kind: ``started``, ``killed`` by the app, ``printed`` something, ``failed`` to answer.
        text: what is to be said of it; all that it has written, where it has printed.
        details: a traceback.
        left_out: bytes that it has printed before, and that were too many to be read.
    """

    worker: str
    kind: Literal["started", "killed", "printed", "failed"]
    text: str
    details: str = ""
    left_out: int = 0

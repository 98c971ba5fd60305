"""Number of files that a key press passes through, in the app and in its worker."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from tdx.tui.backend.worker import answer
from tests.called_files import called_files
from tests.tui.driving import driven

MAX_FILES_CURSOR = 21
"""Files of tdx in which a function runs when the cursor moves in the chain."""
MAX_FILES_MOVE = 31
"""The same when a stage moves, without the worker."""
MAX_FILES_MOVE_AND_WORKER = 65
"""The same with the worker, which computes the specs of the chain and checks it."""

MOST_PRESSES = 20


def answer_uncounted(*arguments: Any) -> Any:
    """Answer a request as the worker does; its files are not counted."""
    profile = sys.getprofile()
    sys.setprofile(None)
    try:
        return answer(*arguments)
    finally:
        sys.setprofile(profile)


@pytest.mark.parametrize(
    ("key", "back", "with_worker", "limit"),
    [
        ("up", "down", True, MAX_FILES_CURSOR),
        ("K", "J", False, MAX_FILES_MOVE),
        ("K", "J", True, MAX_FILES_MOVE_AND_WORKER),
    ],
)
async def test_key_passes_through_few_files(
    key: str, back: str, with_worker: bool, limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not with_worker:
        monkeypatch.setattr("tests.tui.inline_backend.answer", answer_uncounted)
    async with driven("StepCounter", "RewardSum") as app:
        await app.press("end", "up")
        # The first presses import the modules, and compute specs.
        await app.press(key, back, key)
        # Timers may run during a key press.
        passed: set[str] = set()
        for _ in range(MOST_PRESSES):
            await app.press(back)
            with called_files() as files:
                await app.press(key)
            passed = min(passed or files, files, key=len)
            if len(passed) <= limit:
                break
        assert 0 < len(passed) <= limit, sorted(passed)

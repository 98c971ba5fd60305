"""Number of files that a key press passes through, in the app and in its worker."""

from __future__ import annotations

import pytest

from tests.called_files import called_files
from tests.tui.driving import driven

MAX_FILES_CURSOR = 21
"""Files of tdx in which a function runs when the cursor moves in the chain."""
MAX_FILES_MOVE = 67
"""The same when a stage moves, with a check of the chain and a restart of the live session."""

MOST_PRESSES = 20


@pytest.mark.parametrize(
    ("key", "back", "limit"), [("up", "down", MAX_FILES_CURSOR), ("K", "J", MAX_FILES_MOVE)]
)
async def test_key_passes_through_few_files(key: str, back: str, limit: int) -> None:
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

"""Full garbage collections wait for a pause between key presses."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from tdx.tui import idle_collector
from tdx.tui.idle_collector import IDLE_SECONDS, INTERVAL_SECONDS, IdleCollector
from tests.tui.driving import driven


class Collections:
    """Collector with a fake clock and a list of its collections."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        self.times: list[float] = []
        self.partial = 0
        self.collector = IdleCollector(lambda: self.now)
        monkeypatch.setattr(gc, "collect", lambda: self.times.append(self.now))
        monkeypatch.setattr(gc, "get_count", lambda: (0, 0, self.partial))

    def pass_time(self, seconds: int, *, keys: bool) -> None:
        """Check once per second, optionally with key presses in between."""
        for _ in range(seconds):
            self.now += 1
            if keys:
                self.collector.note_input()
            self.collector.check()


@pytest.fixture
def collections(monkeypatch: pytest.MonkeyPatch) -> Collections:
    return Collections(monkeypatch)


@pytest.fixture
def settings_of_gc() -> Iterator[None]:
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)
    gc.unfreeze()
    gc.enable()


def test_collects_regularly_while_idle(collections: Collections) -> None:
    collections.pass_time(60, keys=False)
    assert collections.times == [15.0, 30.0, 45.0, 60.0]
    assert INTERVAL_SECONDS == 15.0


def test_waits_while_keys_are_pressed(collections: Collections) -> None:
    collections.pass_time(100, keys=True)
    assert collections.times == []
    collections.pass_time(5, keys=False)
    assert collections.times == [100.0 + IDLE_SECONDS]


def test_waits_for_a_limited_time(collections: Collections) -> None:
    collections.partial = idle_collector.MAX_PARTIAL_COLLECTIONS
    collections.pass_time(1, keys=True)
    assert collections.times == [1.0]


@pytest.mark.usefixtures("settings_of_gc")
def test_python_collects_only_young_generations() -> None:
    before = gc.get_threshold()
    gc.disable()
    IdleCollector().start()
    assert gc.isenabled()
    assert gc.get_threshold()[:2] == before[:2]
    assert gc.get_threshold()[2] > 10**8
    assert gc.get_freeze_count() > 0


@pytest.mark.usefixtures("settings_of_gc")
async def test_app_collects_if_collection_was_disabled() -> None:
    gc.disable()
    async with driven("RewardSum") as app:
        assert gc.isenabled()
        assert gc.get_threshold()[2] > 10**8
        before = app.app._collector._input_time
        await app.press("down")
        assert app.app._collector._input_time > before

"""The journal and the log tab."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tdx.pipeline import Pipeline, PipelineFile
from tdx.pipeline.editing import Draft
from tdx.tui.backend.client import Backend, RequestError
from tdx.tui.backend.messages import WorkerEvent
from tdx.tui.backend.process import TAIL_BYTES, Output
from tdx.tui.log import journal as journals
from tdx.tui.log.journal import (
    MAX_ENTRIES,
    MAX_LINES_PER_WRITE,
    MAX_OUTPUT_ENTRIES,
    Journal,
    clean_line,
    clean_lines,
)
from tdx.tui.log.journal import MAX_LINE_LENGTH as MOST_LENGTH
from tests.programs import exhaustive
from tests.tui.asked import Fail, Print
from tests.tui.driving import Driver, driven
from tests.tui.snapshots import check_snapshots

NASTY = "\x1b[31mred\x1b[0m [bold]b[/bold] \x07\x9b2J\u202egnp.\x1b]0;title\x07\x00 end\r"
ESCAPED = r"red [bold]b[/bold] \x07\x9b2J\u202egnp.\x00 end"


def texts(journal: Journal) -> list[str]:
    return [entry.text for entry in journal.entries]


def test_control_characters_are_escaped() -> None:
    (line,) = clean_lines(NASTY)
    assert line == ESCAPED
    assert line.isprintable()
    assert clean_lines("1 %\r50 %\r100 %\r\ndone\n\n  \n") == ["100 %", "done"]
    assert clean_line("a\tb\ud800") == r"a   b\ud800"
    assert len(clean_line("x" * 10 * MOST_LENGTH)) == MOST_LENGTH
    assert clean_line("ünï → 日本 🎲") == "ünï → 日本 🎲"


def test_journal_is_bounded_and_keeps_errors_longer_than_output() -> None:
    journal = Journal()
    journal.record("it broke", severity="error", details="x" * 100_000)
    for n in range(50):
        journal.record_output(
            "live", "".join(f"step {n} {m}\n" for m in range(MAX_LINES_PER_WRITE + 5))
        )
    assert "it broke" in texts(journal)
    assert len(journal.entries) == MAX_OUTPUT_ENTRIES + 1
    assert "… 5 lines left out …" in texts(journal)
    assert len(journal.entries[0].details) < 50_000
    for n in range(2 * MAX_ENTRIES):
        journal.record(f"message {n}")
    assert len(journal.entries) == MAX_OUTPUT_ENTRIES + MAX_ENTRIES
    journal.clear()
    assert journal.entries == []


def test_repeated_entries_are_one_line_with_a_count() -> None:
    journal = Journal(now=lambda: 0.0)
    journal.record_output("live", "warn\nwarn\nwarn\n")
    journal.record("saved")
    journal.record_output("live", "warn\n", skipped_bytes=12_345)
    found = [(entry.text, entry.times) for entry in journal.entries]
    assert found == [("warn", 3), ("saved", 1), ("… 12,345 bytes left out …", 1), ("warn", 1)]
    assert journal.entries[0].full_text.endswith("output      live     warn (×3)")


def test_output_is_read_in_whole_lines_with_a_limit() -> None:
    output = Output()
    output.write(b"one\ntw")
    assert output.read_new() == ("one\n", 0)
    output.write(b"o\n")
    assert output.read_new() == ("two\n", 0)
    output.write(b"much of it\n" * TAIL_BYTES)
    text, skipped_bytes = output.read_new()
    assert len(text) == TAIL_BYTES
    assert skipped_bytes == 10 * TAIL_BYTES
    assert output.read_new() == ("", 0)
    output.write(b"after\n")
    assert output.read_new() == ("after\n", 0)


def test_error_of_a_worker_that_the_chain_names_is_listed_once() -> None:
    failure = WorkerEvent("live", "failed", "no key 'pixels'")
    named = "stage 1 ToTensorImage: no key 'pixels'"
    for worker_first in (True, False):
        journal = Journal()
        if worker_first:
            journal.record_worker_event(failure)
        journal.record(named, source="chain", severity="error")
        if not worker_first:
            journal.record_worker_event(failure)
        assert [entry.text for entry in journal.entries] == [named]


@pytest.mark.usefixtures("shared_warm_program")
async def test_log_has_requests_and_output_of_workers() -> None:
    journal = Journal()
    backend = Backend(on_event=lambda news: journal.record_worker_event(news))
    try:
        await backend.ask(Print(f"{NASTY}\nsecond"), worker="live")
        while "second" not in texts(journal):  # lines arrive as soon as they are written
            await asyncio.sleep(0.05)
        with pytest.raises(RequestError):
            await backend.ask(Fail("other"), worker="live")
        backend.ask(Print("nearly the last words"), worker="live")
        with pytest.raises(RequestError):
            await backend.ask(Fail("exit"), worker="live")
        await backend.ask(Print(""), worker="live")
        backend.restart("live")
    finally:
        backend.close()
    found = texts(journal)
    assert found[0].startswith("started process ")
    assert found[0].endswith(" for the rollout")
    assert ESCAPED in found
    failed = next(entry for entry in journal.entries if entry.severity == "error")
    assert failed.text == "ValueError: unforeseen"
    assert "asked.py" in failed.details
    assert found.index("careful, nearly the last words") < found.index("last words")
    assert found[-1] == "killed the worker for the rollout"


async def filled(app: Driver) -> None:
    """Fill the journal with entries of each kind."""
    journal = app.app.workspace.journal
    journal.clear()
    app.app.notify("saved [bold]a[/bold].yaml")
    app.app.notify("Not there", title="Not opened", severity="error")
    app.app.notify("a key is taken", title="Settings", severity="warning")
    journal.record_worker_event(
        WorkerEvent("live", "printed", f"{NASTY}\nstep 1\nstep 1\nstep 2\n")
    )
    journal.record_worker_event(
        WorkerEvent("live", "failed", "ValueError: no", "Traceback\n  line 3")
    )
    app.app.clear_notifications()
    await app.settle()


@exhaustive
async def test_the_log_is_read_filtered_searched_copied_and_cleared() -> None:
    async with driven(env=None) as app:
        tab = app.find("TabbedContent").get_tab("log")
        assert not tab.has_class("-unread")
        await filled(app)
        assert tab.has_class("-unread")
        await app.press("5")
        assert not tab.has_class("-unread")
        assert app.app.focused is app.find("LogView")
        said = app.text("LogTab")
        assert "app saved [bold]a[/bold].yaml" in said
        assert "✕ app Not opened: Not there" in said
        assert r"red [bold]b[/bold] \x07" in said
        assert "step 1 ×2" in said
        assert "warnings 3" in said
        assert "Traceback line 3" in app.text("#log-details")
        await app.press("enter")
        assert "ValueError: no" in app.text(".dialog")
        await app.press("escape", "slash", "text:STEP", "enter")
        assert app.find("LogView").selected_entry.text == "step 1"
        assert "1 of 2 matches" in app.text("LogTab SearchBar")
        await app.press("n")
        assert app.find("LogView").selected_entry.text == "step 2"
        await app.press("n", "N", "escape")
        assert not app.find("LogTab SearchBar").display
        await app.press("f")
        assert "step 1" not in app.text("LogTab")
        assert "a key is taken" in app.text("LogTab")
        await app.press("home")
        app.app.notify("another", severity="warning")
        await app.settle()
        assert app.find("LogView").cursor == 0
        await app.press("end", "f")
        assert "a key is taken" not in app.text("LogView")
        await app.pilot.click("#log-all")
        await app.press("y")
        assert "output      live     step 1 (×2)\n" in app.app.clipboard
        assert "    Traceback\n      line 3" in app.app.clipboard
        await app.press("x")
        assert "The log is empty." in app.text("LogTab")


async def test_log_that_draws_late_does_not_take_the_focus_back() -> None:
    async with driven() as app:
        app.app.workspace.journal.record("an entry")
        await app.press("5")
        assert app.app.focused is app.find("LogView")
        # No await in between: the log has not handled yet that it lost the focus.
        app.app.screen.set_focus(app.find("ChainList"))
        app.find("LogTab").update()
        await app.settle()
        assert app.app.focused is app.find("ChainList")


@exhaustive
async def test_each_problem_of_the_chain_is_logged_once() -> None:
    async with driven("RewardSum", "StepCounter") as app:
        workspace, journal = app.app.workspace, app.app.workspace.journal
        broken = Draft.of(Pipeline.of("Pendulum-v1", "RewardSum", 'CatFrames(in_keys=["none"])'))
        before = workspace.draft
        workspace.edit("break it", broken)
        await app.settle()
        workspace.refresh()
        await app.settle()
        (entry,) = [each for each in journal.entries if each.severity == "error"]
        assert entry.text.startswith("stage 1 CatFrames: ")
        workspace.edit("fix it", before)
        await app.settle()
        assert "stage 1 StepCounter works again" in texts(journal)


@pytest.mark.usefixtures("fixed_catalog")
@exhaustive
async def test_log_matches_snapshots(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journals.LogEntry, "time", property(lambda entry: "12:34:56"))
    root = Path(__file__).parents[2]
    draft = Draft.of(PipelineFile.load(root / "sample_pipelines" / "pendulum.yaml").pipeline)
    async with driven(draft=draft) as app:
        await filled(app)
        await app.press("5", "slash", "text:step", "enter", "N")
        await check_snapshots(app, "log", tmp_path)

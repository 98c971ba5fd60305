"""Sessions as plain data: drafts, history, and damaged documents."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tdx.foundation.errors import StorageError
from tdx.pipeline import Pipeline
from tdx.pipeline.editing import Draft, Editor
from tdx.pipeline.editing.sessions import Session, session_from_json, session_to_json
from tests.pipeline.strategies import PIPELINES, STAGES, exactly
from tests.programs import examples


def edited(pipeline: Pipeline, steps: int) -> Editor:
    editor = Editor(Draft.of(pipeline))
    for number in range(steps):
        stages = len(editor.draft.stages)
        if stages and number % 3 == 0:
            editor.apply(f"off {number}", editor.draft.toggle(number % stages))
        elif stages and number % 3 == 1:
            editor.apply(f"copy {number}", editor.draft.duplicate(0), merge="copy")
        elif pipeline.transforms:
            editor.apply(f"add {number}", editor.draft.insert(0, pipeline.transforms[:1]))
    return editor


@given(PIPELINES, st.integers(0, 7), st.integers(0, 4))
@settings(max_examples=examples(20))
def test_a_session_survives_a_round_trip(pipeline: Pipeline, steps: int, back: int) -> None:
    editor = edited(pipeline, steps)
    for _ in range(back):
        editor.undo()
    session = Session.of(editor, "version: 1\n")
    again = session_from_json(json.loads(json.dumps(session_to_json(session))))
    assert exactly(again) == exactly(session)


@given(st.lists(STAGES, max_size=3))
@settings(max_examples=examples(20))
def test_a_draft_without_an_env_is_saved(stages: list[object]) -> None:
    editor = Editor()
    editor.apply("add", editor.draft.insert(0, stages))  # type: ignore[arg-type]
    again = session_from_json(session_to_json(Session.of(editor)))
    assert exactly(again.draft) == exactly(editor.draft)


def test_an_editor_resumes_a_session() -> None:
    editor = edited(Pipeline.of("Pendulum-v1", "RewardSum", "StepCounter"), 6)
    editor.undo()
    other = Editor()
    session = session_from_json(session_to_json(Session.of(editor)))
    other.load(session.draft)
    other.restore(session.saved, session.done, session.undone)
    assert other.draft == editor.draft
    assert other.is_modified
    while (change := editor.undo()) is not None:
        assert other.undo() == change
        assert other.draft == editor.draft
    assert not other.is_modified
    while (change := editor.redo()) is not None:
        assert other.redo() == change


def test_a_long_history_of_a_long_chain_stays_small() -> None:
    editor = Editor(Draft.of(Pipeline.of("Pendulum-v1", *["RewardSum"] * 30)))
    for number in range(300):
        editor.apply(f"off {number}", editor.draft.toggle(number % 30))
    assert len(json.dumps(session_to_json(Session.of(editor)))) < 100_000


@pytest.mark.parametrize(
    "document",
    [
        None,
        [],
        {"kind": "profile"},
        {"kind": "session", "schema_version": 99},
        {"kind": "session", "schema_version": 1},
        {**session_to_json(Session.of(Editor())), "draft": 7},
        {**session_to_json(Session.of(Editor())), "drafts": [[0, [3], None]]},
        {**session_to_json(Session.of(Editor())), "base": 3},
        {**session_to_json(Session.of(Editor())), "stages": [[0, "RewardSum(", True]]},
        {**session_to_json(Session.of(Editor())), "heads": [["--envy", "a"]]},
    ],
)
def test_invalid_sessions_are_refused(document: object) -> None:
    with pytest.raises(StorageError, match=r"session") as raised:
        session_from_json(document)
    assert "\n" not in str(raised.value)


def test_renaming_applies_to_the_whole_history() -> None:
    editor = edited(Pipeline.of("Pendulum-v1", "RewardSum"), 4)
    editor.undo()
    editor.rename("b.yaml")
    drafts = [editor.draft, editor.saved]
    drafts += [draft for each in editor.done for draft in (each.before, each.after)]
    drafts += [draft for each in editor.undone for draft in (each.before, each.after)]
    assert {draft.file for draft in drafts} == {"b.yaml"}

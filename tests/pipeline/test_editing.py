"""Drafts, undo and redo, forms, search and presets."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tdx.foundation.errors import ArgumentError, PipelineError, TdxError
from tdx.inspection.lint.rule import move_stage
from tdx.pipeline import (
    EnvConfig,
    Pipeline,
    PipelineFile,
    StageConfig,
    format_stage,
    load_catalog,
    parse_stage,
)
from tdx.pipeline.editing import Draft, Editor
from tdx.pipeline.editing.documents import list_presets
from tdx.pipeline.editing.forms import (
    fill_arguments,
    list_env_fields,
    list_stage_fields,
    set_argument,
    set_env_field,
)

NAMES = ("RewardSum", "StepCounter", "InitTracker", "CatFrames")
EDITS = st.lists(
    st.tuples(
        st.sampled_from(["insert", "remove", "duplicate", "move", "toggle", "replace", "env"]),
        st.integers(0, 7),
        st.integers(0, 7),
    ),
    max_size=25,
)


def edited(draft: Draft, kind: str, place: int, other: int) -> Draft:
    """The draft after one edit, at valid positions."""
    if kind == "env":
        return draft.with_env(EnvConfig(f"Env{other}-v0"))
    if kind == "insert":
        at = place % (len(draft.stages) + 1)
        return draft.insert(at, [StageConfig(NAMES[other % len(NAMES)])])
    if not draft.stages:
        return draft
    at, to = place % len(draft.stages), other % len(draft.stages)
    if kind == "replace":
        return draft.replace(at, StageConfig("CatFrames", (other,)))
    if kind == "move":
        return draft.move(at, to)
    return {"remove": draft.remove, "duplicate": draft.duplicate, "toggle": draft.toggle}[kind](at)


@given(EDITS)
def test_every_edit_can_be_undone_and_redone(edits: list[tuple[str, int, int]]) -> None:
    first = Draft.of(Pipeline.of("Pendulum-v1", "RewardSum", "StepCounter"))
    editor = Editor(first)
    seen = [first]
    for edit in edits:
        if editor.apply(edit[0], edited(editor.draft, *edit)):
            seen.append(editor.draft)
        numbers = [stage.number for stage in editor.draft.stages]
        assert len(set(numbers)) == len(numbers)
    for draft in reversed(seen[:-1]):
        assert editor.undo() is not None
        assert editor.draft == draft
    assert editor.undo() is None
    assert not editor.is_modified
    for draft in seen[1:]:
        assert editor.redo() is not None
        assert editor.draft == draft
    assert editor.redo() is None


def test_merged_edits_are_undone_together_until_sealed() -> None:
    editor = Editor(Draft.of(Pipeline.of("Pendulum-v1", "StepCounter")))
    first = editor.draft
    for steps in (1, 12, 123):
        config = StageConfig("StepCounter", (), {"max_steps": steps})
        editor.apply("set max_steps", editor.draft.replace(0, config), merge="0.max_steps")
    editor.seal()
    last = StageConfig("StepCounter", (), {"max_steps": 4})
    editor.apply("set max_steps", editor.draft.replace(0, last), merge="0.max_steps")
    assert len(editor.done) == 2
    editor.undo()
    assert editor.draft.stages[0].config.kwargs == {"max_steps": 123}
    editor.undo()
    assert editor.draft == first


def test_an_edit_after_undo_clears_the_redo_history() -> None:
    editor = Editor(Draft.of(Pipeline.of("Pendulum-v1", "RewardSum", "StepCounter")))
    editor.apply("remove", editor.draft.remove(0))
    editor.undo()
    editor.apply("remove", editor.draft.remove(1))
    assert editor.redo() is None


def test_a_draft_without_an_env_has_no_pipeline() -> None:
    with pytest.raises(ArgumentError, match="no env is chosen"):
        Draft().pipeline()


@pytest.mark.parametrize("place", [-1, 2])
def test_a_stage_index_out_of_range_is_refused(place: int) -> None:
    with pytest.raises(ArgumentError, match="does not exist"):
        Draft.of(Pipeline.of("Pendulum-v1", "RewardSum", "StepCounter")).remove(place)


def test_indices_of_fixes_skip_disabled_stages() -> None:
    draft = Draft.of(Pipeline.of("A-v0", "RewardSum", "RewardClipping", "RewardScaling"))
    clip, scale = draft.stages[1].config, draft.stages[2].config
    moved = move_stage(0, 1, clip, scale).apply(draft.toggle(0))
    names = [stage.config.name for stage in moved.stages]
    assert names == ["RewardSum", "RewardScaling", "RewardClipping"]


def test_form_has_a_field_for_every_argument_that_can_be_typed() -> None:
    untyped = set()
    for info in load_catalog().transforms:
        fields = list_stage_fields(StageConfig(info.name))
        named = [each.name for each in info.parameters if not each.kind.startswith("var_")]
        shown = [field.name for field in fields]
        assert shown == [name for name in named if name in shown]
        untyped |= {(info.name, name) for name in named if name not in shown}
        for field in fields:
            assert field.help, (info.name, field.name)
            assert field.short_type, (info.name, field.name)
            assert field.required == (info.parameter(field.name).required)  # type: ignore[union-attr]
    assert untyped == {
        ("ModuleTransform", "module"),
        *(("VecNorm", "lock"), ("VecNorm", "shared_td")),
        *(("VecNormV2", "lock"), ("VecNormV2", "shared_data")),
    }


LISTED = 'CatFrames(N=4, dim=-1, in_keys=["a", ("b", "c")]'


@pytest.mark.parametrize(
    ("text", "stage"),
    [
        ("4 -3", "CatFrames(N=4, dim=-3)"),
        ("4, dim=-3", "CatFrames(N=4, dim=-3)"),
        ("dim=-1 4 pixels,depth", 'CatFrames(N=4, dim=-1, in_keys=["pixels", "depth"])'),
        ("4 -1 [a, b.c] padding=constant", f'{LISTED}, padding="constant")'),
        ("", "CatFrames"),
    ],
)
def test_typed_words_set_arguments(text: str, stage: str | None) -> None:
    filled = format_stage(fill_arguments(StageConfig("CatFrames"), text))
    assert filled == (
        stage or 'CatFrames(N=4, dim=-1, in_keys=["pixels", "depth"], padding="constant")'
    )


@pytest.mark.parametrize("text", ["four", "1 2 3 4 5 6 7 8 9 10 11", "size=3", "4 -1 [pixels"])
def test_words_that_are_no_arguments_are_refused(text: str) -> None:
    with pytest.raises(TdxError):
        fill_arguments(StageConfig("CatFrames"), text)


@pytest.mark.parametrize(
    ("stage", "name", "text", "value"),
    [
        ("CatFrames", "in_keys", "pixels, agents.pixels", ("pixels", ("agents", "pixels"))),
        ("CatFrames", "in_keys", '["a b"]', ("a b",)),
        ("CatFrames", "padding", "constant", "constant"),
        ("StepCounter", "max_steps", "None", None),
        ("StepCounter", "step_count_key", "n", "n"),
        ("CatFrames", "done_key", "agents.done", ("agents", "done")),
        ("CatFrames", "in_keys", "agents.pixels", (("agents", "pixels"),)),
        ("RewardScaling", "loc", "0.5", 0.5),
        ("RewardScaling", "loc", "[1.0, 2.0]", (1.0, 2.0)),
        ("Resize", "interpolation", "nearest", "nearest"),
    ],
)
def test_field_text_round_trips(stage: str, name: str, text: str, value: object) -> None:
    changed = set_argument(StageConfig(stage), name, text)
    assert changed.kwargs == {name: value}
    shown = next(each.text for each in list_stage_fields(changed) if each.name == name)
    assert set_argument(StageConfig(stage), name, shown) == changed
    assert set_argument(changed, name, "") == StageConfig(stage)


@pytest.mark.parametrize(
    ("stage", "name", "text", "message"),
    [
        ("StepCounter", "max_steps", "2x", "max_steps must be a whole number or None, got 2x"),
        ("StepCounter", "max_steps", "2.5", "max_steps must be a whole number or None, got 2.5"),
        ("CatFrames", "padding", "zeros", "padding must be one of"),
    ],
)
def test_invalid_field_text_is_refused(stage: str, name: str, text: str, message: str) -> None:
    with pytest.raises(TdxError) as raised:
        set_argument(StageConfig(stage), name, text)
    assert raised.value.message.startswith(message)


def test_arguments_keep_the_declared_order() -> None:
    stage = set_argument(parse_stage("CatFrames(4, dim=-1)"), "in_keys", "pixels")
    assert list(set_argument(stage, "padding", "same").kwargs) == [
        "N",
        "dim",
        "in_keys",
        "padding",
    ]


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("num_envs", "4", 4),
        ("seed", "0", 0),
        ("kwargs", "g=9.8", {"g": 9.8}),
        ("from_pixels", "True", True),
        ("batching", "serial", "serial"),
        ("device", "cuda:0", "cuda:0"),
        ("worker_timeout", "2.5", 2.5),
    ],
)
def test_fields_of_the_env(name: str, text: str, value: object) -> None:
    env = set_env_field(EnvConfig("Pendulum-v1"), name, text)
    assert getattr(env, name) == value
    assert next(each.text for each in list_env_fields(env) if each.name == name) == text
    assert set_env_field(env, name, "") == EnvConfig("Pendulum-v1")


@pytest.mark.parametrize(("name", "text"), [("num_envs", "x"), ("batching", "y"), ("kwargs", "9")])
def test_invalid_env_field_text_is_refused(name: str, text: str) -> None:
    with pytest.raises((PipelineError, ArgumentError)):
        set_env_field(EnvConfig("Pendulum-v1"), name, text)


def test_every_preset_is_a_pipeline_with_a_title() -> None:
    found = list_presets()
    assert found
    for preset in found:
        assert preset.title
        assert PipelineFile.load(preset.path).pipeline.env.id


def test_nested_keys_use_dots_and_values_have_completions() -> None:
    stage = parse_stage('CatFrames(4, dim=-1, in_keys=["pixels", ("agents", "pixels")])')
    fields = {field.name: field for field in list_stage_fields(stage)}
    assert fields["in_keys"].text == "pixels, agents.pixels"
    cast = {field.name: field for field in list_stage_fields(StageConfig("DTypeCastTransform"))}
    assert "torch.float64" in cast["dtype_out"].completions
    primer = {field.name: field for field in list_stage_fields(StageConfig("TensorDictPrimer"))}
    assert "Bounded(" in primer["primers"].completions

"""Composing a chain in the app: every edit by keys, and some by mouse."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from textual.widgets import Checkbox, Input, OptionList, Select

from tdx.foundation.errors import Where
from tdx.inspection.check_report import Finding
from tdx.inspection.overview import StageOverview
from tdx.pipeline import Pipeline, PipelineFile
from tdx.pipeline.editing import Draft
from tdx.tui.chain_status import ChainStatus, ErrorStore, StageFinding
from tdx.tui.compose.chain_pane import build_chain_rows
from tdx.tui.compose.form_row import WordSuggester
from tests.tui.driving import Driver, driven
from tests.tui.idle import resize

CHAIN = ("RewardScaling(0.0, 0.1)", "RewardSum", "StepCounter(max_steps=200)")
ROOT = Path(__file__).parents[2]


async def test_catalog_adds_after_the_selected_stage() -> None:
    async with driven("RewardSum", "StepCounter") as app:
        await app.press("a", "text:inittracker", "enter")
        assert app.stages == ["RewardSum", "StepCounter", "InitTracker"], "the env is selected"
        assert app.place == 2
        await app.press("escape", "u", "home", "down", "a", "text:rc", "enter")
        assert app.stages == ["RewardSum", "RewardClipping", "StepCounter"]
        assert app.place == 1


async def test_add_field_takes_arguments_and_stays_open() -> None:
    async with driven() as app:
        await app.press("a", "text:cf 4 -1 in_keys=obs", "right", "enter")
        assert app.stages == ['CatFrames(N=4, dim=-1, in_keys=["observation"])']
        assert app.app.focused is app.find("#catalog-search")
        assert app.find("#catalog-search").value == ""
        await app.press("enter")
        assert len(app.stages) == 1, "Enter in an empty field adds nothing"
        await app.press("text:rs", "enter", "text:StepCounter(200)", "enter", "escape")
        assert app.stages[1:] == ["RewardSum", "StepCounter(max_steps=200)"]
        assert app.app.focused is app.find("#chain")


async def test_add_field_asks_for_required_arguments() -> None:
    async with driven() as app:
        await app.press("a", "text:cf", "enter")
        assert app.find("#catalog-search").value == "CatFrames "
        assert app.stages == []
        assert "N* dim*" in app.text("#catalog-doc")
        await app.press("text:4 x", "enter")
        assert app.stages == []
        assert "dim must be a whole number, got x" in app.text("#catalog-doc")
        await app.press("backspace", "text:-1", "enter")
        assert app.stages == ["CatFrames(N=4, dim=-1)"]
        await app.press("text:cf", "enter", "enter")
        assert app.stages[-1] == "CatFrames"
        assert "needs the argument" in app.text("#chain")


async def test_click_in_the_catalog_selects_and_a_double_click_adds() -> None:
    async with driven(size=(120, 40)) as app:
        await app.press("a", "text:reward")
        catalog = app.find("#catalog")
        at = (4, catalog.get_option_index("BinarizeReward"))
        await app.pilot.click(catalog, offset=at)
        await app.settle()
        assert app.stages == []
        assert catalog.highlighted == at[1]
        await app.pilot.click(catalog, offset=at, times=2)
        await app.settle()
        assert app.stages == ["BinarizeReward"]


async def test_catalog_describes_transforms_and_escape_leaves_it() -> None:
    async with driven(size=(80, 24)) as app:
        for size in ((80, 24), (200, 60)):
            await resize(app.pilot, *size)
            await app.press("a", "text:xyz")
            assert app.text("#catalog") == "no match"
            await app.press("escape")
            assert app.find("#catalog-search").value == ""
            await app.press("escape")
            assert app.app.focused is app.find("#chain")
            assert app.find("#catalog-pane").display == (size[0] > 80)
        await app.press("slash", "text:catframes")
        assert "Concatenate the last N frames" in app.text("#catalog-doc")


EDITS: list[tuple[list[str], list[str], int]] = [
    (["d"], ["RewardSum", "StepCounter(max_steps=200)"], 0),
    (["c"], ["RewardScaling(0.0, 0.1)", *CHAIN], 1),
    (["space"], ["(RewardScaling(0.0, 0.1))", *CHAIN[1:]], 0),
    (["space", "space"], [*CHAIN], 0),
    (["shift+down"], [CHAIN[1], CHAIN[0], CHAIN[2]], 1),
    (["J", "J", "K"], [CHAIN[1], CHAIN[0], CHAIN[2]], 1),
    (["shift+up"], [*CHAIN], 0),
    (["end", "up", "delete"], [*CHAIN[:2]], 2),
]
"""Keys pressed at the first stage, with the stages and selected place afterwards."""


async def test_edits_by_key_are_undone_and_redone() -> None:
    async with driven(*CHAIN) as app:
        editor = app.app.workspace.editor
        for keys, stages, place in EDITS:
            await app.press("home", "down", *keys)
            assert (app.stages, app.place) == (stages, place), keys
            edits = len(editor.done)
            await app.press(*["u"] * edits)
            assert app.stages == [*CHAIN], keys
            assert not editor.is_modified
            await app.press(*["U"] * edits)
            assert app.stages == stages, keys
            await app.press(*["u"] * edits)


async def test_cursor_moves_through_a_chain_longer_than_its_pane() -> None:
    async with driven(*["RewardSum"] * 24, size=(80, 16)) as app:
        chain = app.find("#chain")
        await app.press("down", "down")
        assert (app.place, chain.scroll_offset.y) == (1, 0)
        await app.press("end", "up")
        assert app.place == 23
        assert 0 <= 24 - chain.scroll_offset.y < chain.size.height  # line of the last stage
        await app.press("pageup")
        assert app.place == 23 - (chain.size.height - 1)
        await app.press("pagedown", "pagedown")
        assert app.place == 24
        await app.press("home")
        assert (app.place, chain.scroll_offset.y) == (-1, 0)


async def test_mouse_moves_selects_toggles_and_opens_stages() -> None:
    async with driven(*CHAIN) as app:
        chain = app.find("#chain")
        await app.pilot.mouse_down(chain, offset=(8, 1))
        await app.pilot.hover(chain, offset=(8, 3))
        await app.pilot.mouse_up(chain, offset=(8, 3))
        await app.settle()
        assert app.stages == [CHAIN[1], CHAIN[2], CHAIN[0]]
        assert app.place == 2
        await app.press("u")
        await app.pilot.click(chain, offset=(0, 2))
        await app.settle()
        assert app.stages[1] == "(RewardSum)"
        await app.pilot.click(chain, offset=(8, 3), times=2)
        await app.settle()
        assert app.place == 2
        assert isinstance(app.app.focused, Input)


async def test_form_sets_an_argument_and_reports_invalid_values() -> None:
    async with driven("StepCounter") as app:
        await app.press("down", "enter", "text:250")
        assert app.stages == ["StepCounter(max_steps=250)"]
        await app.press("escape", "u")
        assert app.stages == ["StepCounter"]
        assert app.find("FormRow Input").value == ""
        await app.press("enter", "text:2", "end", "text:x")
        assert app.stages == ["StepCounter(max_steps=2)"], "the last valid value"
        assert "must be a whole number or None" in app.text("#form")
        await app.press("backspace")
        assert "must be a whole number or None" not in app.text("#form")


async def test_form_says_which_field_takes_the_keys() -> None:
    async with driven("StepCounter", size=(80, 24)) as app:
        await app.press("down")
        assert "editing" not in app.text()
        await app.press("enter")
        assert "editing max_steps · ⏎ next · esc done" in app.text()
        assert "Enter edits" not in app.text()
        await app.press("5", "enter")
        assert "editing truncated_key · ⏎ next · esc done" in app.text()
        await app.press("down", "down")
        assert "editing update_done · esc done" in app.text()
        await app.press("escape")
        assert "editing" not in app.text()
        assert app.stages == ["StepCounter(max_steps=5)"]


async def test_form_has_switches_and_choices() -> None:
    async with driven("CatFrames(4, dim=-1)", "StepCounter") as app:
        await app.press("down")
        app.find("FormRow Select").value = "constant"
        await app.settle()
        assert app.stages[0] == 'CatFrames(N=4, dim=-1, padding="constant")'
        app.find("FormRow Select").value = Select.NULL
        await app.settle()
        assert app.stages[0] == "CatFrames(N=4, dim=-1)"
        await app.press("down")
        app.find("FormRow Checkbox").focus()
        await app.press("enter")
        assert app.stages[1] == "StepCounter(update_done=False)"
        assert isinstance(app.app.focused, Checkbox)


async def test_keys_are_completed_from_the_specs_at_the_stage() -> None:
    async with driven(
        'RenameTransform(["observation"], ["state"])', "ObservationNorm(0.0, 1.0)"
    ) as app:
        await app.press("down", "down")
        row = app.row("in_keys")
        assert row.keys[:1] == ("state",)
        row.query_one(Input).focus()
        await app.press("text:st", "right")
        assert app.stages[1] == 'ObservationNorm(loc=0.0, scale=1.0, in_keys=["state"])'
        await app.press("f2", "down", "space", "enter")
        assert app.stages[1].endswith(f'in_keys=["state", "{row.keys[1]}"])')


@pytest.mark.parametrize(
    ("typed", "completed"),
    [
        ("agents.ob", "agents.observation"),
        ("reward, ag", "reward, agents.observation"),
        ('["don', '["done'),
        ("x", None),
    ],
)
async def test_nested_and_quoted_keys_are_completed(typed: str, completed: str | None) -> None:
    suggester = WordSuggester(("agents.observation", "reward", "done"))
    assert await suggester.get_suggestion(typed) == completed


async def test_values_are_completed_from_the_declaration() -> None:
    async with driven("DTypeCastTransform", "CatFrames(4, dim=-1)") as app:
        await app.press("down")
        app.row("dtype_out").query_one(Input).focus()
        await app.press("text:torch.float6", "right")
        assert app.stages[0] == "DTypeCastTransform(dtype_out=torch.float64)"
        await app.press("escape", "down")
        app.row("done_key").query_one(Input).focus()
        await app.press("alt+down", "text:tru", "enter")
        assert app.stages[1] == 'CatFrames(N=4, dim=-1, done_key="truncated")'


async def test_inverse_keys_are_completed_first_for_inverse_arguments() -> None:
    async with driven("ActionScaling") as app:
        await app.press("down")
        assert app.row("in_keys_inv").keys[0] == "action"


async def test_failing_stage_has_a_badge_and_others_stay_usable() -> None:
    chain = ("RewardScaling(0.0, 0.1)", 'ObservationNorm(0.0, 1.0, in_keys=["observatoin"])')
    async with driven(*chain, "RewardSum") as app:
        shown = app.text("#chain")
        assert "✕ 1 ObservationNorm" in shown
        await app.press("down", "down")
        assert "did you mean observation" in app.text("StageTab ProblemPanel")
        await app.press("down", "2")
        assert "+ episode_reward" in app.text("#spec-tree")


async def test_last_valid_specs_stay_while_a_stage_fails() -> None:
    async with driven('CatFrames(4, dim=-1, in_keys=["observation"])') as app:
        await app.press("down", "enter", "tab", "end", "backspace")
        await app.press("text:7", "escape", "2")
        assert "✕" in app.text("#chain")
        assert "from the last inspection" in app.text("#spec-title")
        assert "[12]" in app.text("#spec-tree")


async def test_fix_of_a_finding_is_applied_by_key() -> None:
    async with driven("RewardClipping(-1.0, 1.0)", "RewardScaling(0.0, 0.1)") as app:
        await app.press("down")
        assert "x move RewardClipping after RewardScaling" in app.text("StageTab ProblemPanel")
        await app.press("x")
        assert app.stages == ["RewardScaling(0.0, 0.1)", "RewardClipping(-1.0, 1.0)"]
        await app.press("u")
        assert app.stages == ["RewardClipping(-1.0, 1.0)", "RewardScaling(0.0, 0.1)"]


async def test_fix_applies_next_to_disabled_and_failing_stages() -> None:
    chain = ("RewardSum", "CatFrames", "RewardClipping(-1.0, 1.0)", "RewardScaling(0.0, 0.1)")
    async with driven(*chain) as app:
        await app.press("down", "space", "down", "down", "x")
        assert app.stages == ["(RewardSum)", "CatFrames", chain[3], chain[2]]


async def test_later_edit_of_a_field_is_a_separate_undo_step() -> None:
    async with driven("StepCounter") as app:
        await app.press("down", "enter", "2", "5", "escape", "enter", "end", "0", "7", "escape")
        assert app.stages == ["StepCounter(max_steps=2507)"]
        await app.press("u")
        assert app.stages == ["StepCounter(max_steps=25)"]
        await app.press("u")
        assert app.stages == ["StepCounter"]


async def test_env_is_selected_from_a_searchable_list() -> None:
    async with driven(env=None) as app:
        text = app.text()
        assert "Welcome to tdx" in text
        assert "e choose an env" in text
        assert "p start with a sample pipeline" in text
        assert "choose an env" in app.text("#form")
        await app.press("e", "text:cartpole-v1", "enter")
        await choose(app)
        assert app.app.workspace.draft.env is not None
        assert app.app.workspace.draft.env.id == "CartPole-v1"
        await app.press("u")
        assert app.app.workspace.draft.env is None


async def test_env_list_starts_short_and_describes_the_spaces() -> None:
    async with driven(env=None) as app:
        await app.press("enter")
        await choices_loaded(app)
        options = app.app.screen.query_one("#choose-list", OptionList)
        assert [option.id for option in options.options][:2] == ["CartPole-v1", "Pendulum-v1"]
        await app.press("down")
        while not app.text("#choose-description"):
            await app.pilot.pause(0.02)
        assert "observation [3] float32" in app.text("#choose-description")
        assert "action [1] float32" in app.text("#choose-description")
        await app.press("text:cartpole")
        ids = [option.id for option in options.options]
        assert ids.index("CartPole-v1") == 0
        assert ids.index("CartPole-v0") > ids.index("phys2d/CartPole-v1"), "old versions are last"
        await app.press("enter")
        assert app.app.workspace.draft.env is not None


async def choices_loaded(app: Driver) -> None:
    """Wait for the list of all envs."""
    while len(app.app.screen.query_one("#choose-list", OptionList).options) < 20:
        await app.pilot.pause(0.02)


async def choose(app: Driver) -> None:
    """Select the first option, also if the list arrives late."""
    if app.app.screen.query("#choose-list"):
        await app.press("enter")


async def test_form_edits_the_env() -> None:
    async with driven("RewardSum") as app:
        app.row("num_envs").query_one(Input).focus()
        await app.press("text:3")
        assert app.app.workspace.draft.env is not None
        assert app.app.workspace.draft.env.num_envs == 3
        assert "batch [3]" in app.text("#status")
        await app.press("text:x")
        assert "must be a whole number" in app.text("#form")


async def test_env_that_cannot_be_created_is_reported_and_replaced() -> None:
    async with driven("RewardSum", env="Pendulm-v1") as app:
        assert "✕" in app.text("#status")
        assert "did you mean Pendulum-v1" in app.text("StageTab ProblemPanel")
        await app.press("down", "d")
        assert app.stages == []


async def test_opening_a_sample_pipeline_can_be_undone() -> None:
    async with driven("RewardSum") as app:
        await app.press("p")
        names = sorted(path.stem for path in (ROOT / "sample_pipelines").glob("*.yaml"))
        lines = app.text("#choose-list", lines=True).split("\n")
        assert [line.split()[0] for line in lines if line.strip()] == names
        await app.press("text:pendulum", "enter")
        assert "CatFrames" in app.stages[-1]
        await app.press("u")
        assert app.stages == ["RewardSum"]


async def test_disabled_stage_is_restored_from_the_file(tmp_path: Path) -> None:
    path = tmp_path / "chain.yaml"
    path.write_text(
        "version: 1\nenv: Pendulum-v1\ntransforms:\n  - RewardSum  # sums\n  - InitTracker\n"
    )
    file = PipelineFile.load(path)
    async with driven(draft=Draft.of(file.pipeline)) as app:
        await app.press("down", "space", "ctrl+s")
        while app.app.workspace.editor.is_modified:
            await app.pilot.pause(0.02)
    assert "  # off: RewardSum  # sums\n  - InitTracker\n" in path.read_text()
    assert [each.name for each in PipelineFile.load(path).pipeline.transforms] == ["InitTracker"]
    async with driven(draft=Draft.of(PipelineFile.load(path).pipeline)) as app:
        assert app.stages == ["(RewardSum)", "InitTracker"]
        await app.press("down", "space")
        assert app.stages == ["RewardSum", "InitTracker"]


@pytest.mark.parametrize("severity", ["error", "warning", "suggestion"])
def test_stage_shows_the_severity_of_its_worst_finding(severity: Any) -> None:
    draft = Draft.of(Pipeline.of("Pendulum-v1", "RewardSum"))
    number = draft.stages[0].number
    found = (
        StageFinding(Finding("lints", "TDX900", "a reason", None, Where(), severity=each))
        for each in ("suggestion", severity)
    )
    good = StageOverview(0, None)
    status = ChainStatus(last_good={number: good}, lints={number: tuple(found)})
    rows = build_chain_rows(draft, status, ErrorStore(), {})
    assert [row.badge for row in rows if row.kind == "stage"] == [severity]


async def test_narrow_row_omits_the_type_and_carried_keys_are_listed_once() -> None:
    async with driven("RewardSum", "StepCounter", size=(120, 40)) as app:
        await app.press("home", "down")
        assert app.text("#form-about").count("+ episode_reward") == 1
        for columns, has_types in ((60, False), (120, True)):
            await resize(app.pilot, columns, 24)
            await app.press("escape", "home", "down", "down", "enter")
            row = app.row("max_steps")
            assert row.query_one(".form-type").is_on_screen is has_types
            assert row.query_one("Input").region.width >= 8

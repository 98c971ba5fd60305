"""Composing a chain in the app: every edit by keys, and some by mouse."""

from __future__ import annotations

import asyncio
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from textual.widgets import Checkbox, Input, OptionList, Select

from tdx.foundation.errors import Where
from tdx.inspection.check_report import Finding
from tdx.inspection.live.views import ReadingWarning, StageReading
from tdx.inspection.overview import StageOverview
from tdx.pipeline import EnvConfig, Pipeline, PipelineFile, load_catalog
from tdx.pipeline.editing import Draft
from tdx.pipeline.model import StackFacts
from tdx.pipeline.values import StageConfig
from tdx.tui.chain_status import ENV, ChainStatus, ErrorStore, StageFinding
from tdx.tui.compose.chain_pane import build_chain_rows
from tdx.tui.compose.form_row import LAST_KEY, WordSuggester
from tdx.tui.screens.dialogs import Choice, ChoiceScreen
from tests.programs import exhaustive
from tests.tui.driving import Driver, driven
from tests.tui.idle import resize

CHAIN = ("RewardScaling(0.0, 0.1)", "RewardSum", "StepCounter(max_steps=200)")
ROOT = Path(__file__).parents[2]


@exhaustive
async def test_catalog_of_a_wide_screen_shows_whole_names() -> None:
    async with driven(size=(200, 60)) as app:
        longest = max(load_catalog().names, key=len)
        await app.press("a", f"text:{longest}")
        assert longest in app.text("#catalog", lines=True)


@exhaustive
async def test_transforms_are_added_from_the_catalog() -> None:
    async with driven("RewardSum", "StepCounter") as app:
        # Catalog adds after the selected stage.
        await app.press("a", "text:inittracker", "enter")
        assert app.stages == ["RewardSum", "StepCounter", "InitTracker"], "the env is selected"
        assert app.place == 2
        await app.press("escape", "u", "home", "down", "a", "text:rc", "enter")
        assert app.stages == ["RewardSum", "RewardClipping", "StepCounter"]
        assert app.place == 1

        # Add field takes arguments and stays open for the next transform; Enter closes it.
        await app.open()
        await app.press("a", "text:cf 4 -1 in_keys=obs", "right", "enter")
        assert app.stages == ['CatFrames(N=4, dim=-1, in_keys=["observation"])']
        assert app.app.focused is app.find("#catalog-search")
        assert app.find("#catalog-search").value == ""
        await app.press("text:rs", "enter", "text:StepCounter(200)", "enter")
        assert app.stages[1:] == ["RewardSum", "StepCounter(max_steps=200)"]
        await app.press("enter")
        assert len(app.stages) == 3, "Enter in an empty field adds nothing"
        assert app.app.focused is app.find("#chain")
        assert not app.find("#catalog-pane").display

        # Add field asks for required arguments.
        await app.open()
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
        assert "CatFrames needs the ar" in app.text("#chain")

        # Click in the catalog selects and a double click adds.
        await app.open(size=(120, 40))
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

        # Catalog describes transforms and escape leaves it.
        await app.open(size=(80, 24))
        for size in ((80, 24), (200, 60)):
            await resize(app.pilot, *size)
            await app.press("a", "text:xyz")
            assert app.text("#catalog") == "no match"
            await app.press("escape")
            assert app.find("#catalog-search").value == ""
            await app.press("escape")
            assert app.app.focused is app.find("#chain")
            assert not app.find("#catalog-pane").display
        await app.press("slash", "text:catframes")
        assert "Concatenate the last N frames" in app.text("#catalog-doc")


@exhaustive
async def test_chain_shows_what_the_stages_do_while_the_env_is_stepped() -> None:
    counts = StageReading(0, 12_300, "step_count", (1.0, 2.0, 3.0), None, is_changed=True)
    clipped = StageReading(1, 2_500_000, "reward", (0.0,) * 3, 1.0, True, "at a bound")
    async with driven("StepCounter", "RewardClipping(0, 1)") as app:
        workspace = app.app.workspace
        workspace.show_readings([counts, clipped])
        await app.settle()
        chain = app.text("#chain")
        assert "▁▄█ + 3" in chain
        assert "12.3 µs" in chain
        assert "1 → 0 at a bound" in chain
        before = len(app.notices)
        for numbers in ((0.0,) * 4, (0.0,) * 5):
            stuck = replace(clipped, warning="constant", numbers=numbers)
            workspace.show_readings([counts, stuck])
            await app.settle()
        (notice,) = app.notices[before:]
        assert "reward has been constant for 50 steps" in notice
        # Without room for all, those that warn remain, and numbers replace the arguments.
        await resize(app.pilot, 80, 16)
        for name in ("RewardSum",) * 12:
            workspace.edit("add", workspace.draft.insert(2, [StageConfig(name)]))
        workspace.show_readings([counts, clipped])
        await app.settle()
        assert "1 → 0 at a bound" in app.text("#chain")
        lines = app.text("#chain", lines=True).splitlines()
        assert next(line for line in lines if "0 StepCounter" in line).endswith(" + 3")
        workspace.show_readings([counts, replace(clipped, before=-1.25, numbers=(-0.125,))])
        await app.settle()
        assert "→ -0.12 at a bound" in app.text("#chain"), "the warning is not cut"
        await app.press("u")
        assert "at a bound" not in app.text("#chain"), "an edit moves the stages"


async def test_cut_arguments_take_no_line_of_their_own() -> None:
    key = "truncated_by_the_counter_of_steps"
    stage = f"StepCounter(max_steps=200, truncated_key='{key}', step_count_key='{key}s')"
    async with driven(stage, *["RewardSum"] * 14, size=(80, 24)) as app:
        chain = app.text("#chain", lines=True)
        assert "truncated_key=" in chain
        assert not any(line.strip(" │") == "…" for line in chain.splitlines()), chain


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


@exhaustive
async def test_chain_is_edited_by_key_and_by_mouse() -> None:
    async with driven(*CHAIN) as app:
        # Edits by key are undone and redone.
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

        # Mouse moves selects toggles and opens stages.
        await app.open(*CHAIN)
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

        # Cursor moves through a chain longer than its pane.
        await app.open(*["RewardSum"] * 24, size=(80, 16))
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


@exhaustive
async def test_arguments_are_edited_in_the_form() -> None:
    async with driven("StepCounter") as app:
        # Form sets an argument and reports invalid values.
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

        # Form has switches and choices.
        await app.open("CatFrames(4, dim=-1)", "StepCounter")
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

        # Later edit of a field is a separate undo step.
        await app.open("StepCounter")
        await app.press("down", "enter", "2", "5", "escape", "enter", "end", "0", "7", "escape")
        assert app.stages == ["StepCounter(max_steps=2507)"]
        await app.press("u")
        assert app.stages == ["StepCounter(max_steps=25)"]
        await app.press("u")
        assert app.stages == ["StepCounter"]

        # Form says which field takes the keys.
        await app.open("StepCounter", size=(80, 24))
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

        # Narrow row omits the type and carried keys are listed once.
        await app.open("RewardSum", "StepCounter", size=(120, 40))
        await app.press("home", "down")
        assert app.text("#form-about").count("+ episode_reward") == 1
        for columns, has_types in ((60, False), (120, True)):
            await resize(app.pilot, columns, 24)
            await app.press("escape", "home", "down", "down", "enter")
            row = app.row("max_steps")
            assert row.query_one(".form-type").is_on_screen is has_types
            assert row.query_one("Input").region.width >= 8


@exhaustive
async def test_values_are_completed_in_the_form() -> None:
    async with driven(
        'RenameTransform(["observation"], ["state"])', "ObservationNorm(0.0, 1.0)"
    ) as app:
        # Keys are completed from the specs at the stage.
        await app.press("down", "down")
        row = app.row("in_keys")
        assert row.keys[:1] == ("state",)
        row.query_one(Input).focus()
        await app.press("text:st", "right")
        assert app.stages[1] == 'ObservationNorm(loc=0.0, scale=1.0, in_keys=["state"])'
        await app.press("f2", "down", "space", "enter")
        assert app.stages[1].endswith(f'in_keys=["state", "{row.keys[1]}"])')

        # Values are completed from the declaration.
        await app.open("DTypeCastTransform", "CatFrames(4, dim=-1)")
        await app.press("down")
        app.row("dtype_out").query_one(Input).focus()
        await app.press("text:torch.float6", "right")
        assert app.stages[0] == "DTypeCastTransform(dtype_out=torch.float64)"
        await app.press("escape", "down")
        app.row("done_key").query_one(Input).focus()
        await app.press("alt+down", "text:tru", "enter")
        assert app.stages[1] == 'CatFrames(N=4, dim=-1, done_key="truncated")'

        # Inverse keys are completed first for inverse arguments.
        await app.open("ActionScaling")
        await app.press("down")
        assert app.row("in_keys_inv").keys[0] == "action"


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
    known = ("agents.observation", "reward", "done")
    suggester = WordSuggester(lambda _: known, LAST_KEY)
    assert await suggester.get_suggestion(typed) == completed


@exhaustive
async def test_problems_are_shown_at_their_stage_and_fixed() -> None:
    misspelt = 'ObservationNorm(0.0, 1.0, in_keys=["observatoin"])'
    async with driven("RewardScaling(0.0, 0.1)", misspelt, "RewardSum") as app:
        # Failing stage has a badge and others stay usable.
        shown = app.text("#chain")
        assert "✕ 1 ObservationNorm" in shown
        await app.press("down", "down")
        assert "did you mean observation" in app.text("StageTab ProblemPanel")
        await app.press("down", "2")
        assert "+ episode_reward" in app.text("#spec-tree")

        # Last valid specs stay while a stage fails.
        await app.open('CatFrames(4, dim=-1, in_keys=["observation"])')
        await app.press("down", "enter", "tab", "end", "backspace")
        await app.press("text:7", "escape", "2")
        assert "✕" in app.text("#chain")
        assert "from the last inspection" in app.text("#spec-title")
        assert "[12]" in app.text("#spec-tree")

        # Fix of a finding is applied by key.
        await app.open("RewardClipping(-1.0, 1.0)", "RewardScaling(0.0, 0.1)")
        await app.press("down")
        assert "x move RewardClipping after RewardScaling" in app.text("StageTab ProblemPanel")
        await app.press("x")
        assert app.stages == ["RewardScaling(0.0, 0.1)", "RewardClipping(-1.0, 1.0)"]
        await app.press("u")
        assert app.stages == ["RewardClipping(-1.0, 1.0)", "RewardScaling(0.0, 0.1)"]

        # Fix applies next to disabled and failing stages.
        chain = ("RewardSum", "CatFrames", "RewardClipping(-1.0, 1.0)", "RewardScaling(0.0, 0.1)")
        await app.open(*chain)
        await app.press("down", "space", "down", "down", "x")
        assert app.stages == ["(RewardSum)", "CatFrames", chain[3], chain[2]]

        # Env that cannot be created is reported and replaced.
        await app.open("RewardSum", env="Pendulm-v1")
        await app.settle()
        assert "✕" in app.text("#status")
        assert "did you mean Pendulum-v1" in app.text("StageTab ProblemPanel")
        await app.press("down", "d")
        assert app.stages == []


@exhaustive
async def test_env_is_chosen_and_edited() -> None:
    async with driven(env=None) as app:
        # Env is selected from a searchable list.
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

        # Env list starts short and describes the spaces.
        await app.open(env=None)
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

        # Form edits the env.
        await app.open("RewardSum")
        app.row("num_envs").query_one(Input).focus()
        await app.press("text:3")
        assert app.app.workspace.draft.env is not None
        assert app.app.workspace.draft.env.num_envs == 3
        assert "batch [3]" in app.text("#status")
        await app.press("text:x")
        assert "must be a whole number" in app.text("#form")

        # Opening a sample pipeline can be undone.
        await app.open("RewardSum")
        await app.press("p")
        names = sorted(path.stem for path in (ROOT / "sample_pipelines").glob("*.yaml"))
        lines = app.text("#choose-list", lines=True).split("\n")
        assert [line.split()[0] for line in lines if line.strip()] == names
        await app.press("text:pendulum", "enter")
        assert "CatFrames" in app.stages[-1]
        await app.press("u")
        assert app.stages == ["RewardSum"]


async def choices_loaded(app: Driver) -> None:
    """Wait for the list of all envs."""
    while len(app.app.screen.query_one("#choose-list", OptionList).options) < 20:
        await app.pilot.pause(0.02)


async def choose(app: Driver) -> None:
    """Select the first option, also if the list arrives late."""
    if app.app.screen.query("#choose-list"):
        await app.press("enter")


@exhaustive
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
    rows = build_chain_rows(draft, status, ErrorStore(), {}, {})
    assert [row.badge for row in rows if row.kind == "stage"] == [severity]


def test_a_stage_shows_one_time_and_a_checkpoint_its_folder() -> None:
    facts = StackFacts("/data/run/last", "checkpoint", (), is_data=True)
    draft = replace(Draft.of(Pipeline.of("/data/run/last")), stack=facts)
    rows = build_chain_rows(draft, ChainStatus(), ErrorStore(), {}, {})
    assert rows[0].title == "last"
    draft = Draft.of(Pipeline.of("Pendulum-v1", "RewardSum"))
    reading = StageReading(0, 29_500, "episode_reward", (1.0, 2.0))
    for costs, time in (({}, "29.5 µs"), ({0: "2.88 µs"}, "")):
        rows = build_chain_rows(draft, ChainStatus(), ErrorStore(), {0: reading}, costs)
        assert [row.detail for row in rows if row.kind == "reading"] == [time]


@pytest.mark.parametrize(
    ("numbers", "warning", "text"),
    [
        ((0.5, math.nan), "NaN", "0.5 → NaN"),
        ((0.5, math.inf), "infinite", "0.5 → infinite"),
        ((0.5, 99.69), "outside its spec", "0.5 → 100 outside its spec"),
    ],
)
def test_a_warning_says_once_what_is_wrong(
    numbers: tuple[float, ...], warning: ReadingWarning, text: str
) -> None:
    draft = Draft.of(Pipeline.of("Pendulum-v1", "RewardSum"))
    reading = StageReading(0, 29_500, "reward", numbers, numbers[0], True, warning)
    rows = build_chain_rows(draft, ChainStatus(), ErrorStore(), {0: reading}, {})
    assert f"{rows[2].title} {rows[2].detail}" == text


async def test_costs_end_in_one_column_of_the_chain() -> None:
    # So many that the arguments are beside the names.
    stages = ("RewardSum", "VecNorm(decay=0.9)", *["DoubleToFloat"] * 18)
    async with driven(*stages, size=(80, 24)) as app:
        app.app.workspace.show_costs({0: "2.0 µs", 1: "3.0 µs"})
        await app.settle()
        lines = app.text("#chain", lines=True).splitlines()
        short, long = (line for line in lines if "µs" in line)
        assert "VecNorm  d" in long
        assert long.index("µs") == short.index("µs")


async def test_the_cost_of_the_env_is_never_cut() -> None:
    draft = Draft.of(Pipeline.of(EnvConfig("Pendulum-v1", num_envs=12, seed=100), "RewardSum"))
    async with driven(draft=draft, size=(60, 20)) as app:
        app.app.workspace.show_costs({ENV: "1,503 µs"})
        await app.settle()
        assert "1,503 µs" in app.text("#chain", lines=True).splitlines()[0]


async def test_a_cost_of_the_env_replaces_the_seed_before_it_cuts_the_name() -> None:
    draft = Draft.of(Pipeline.of(EnvConfig("CartPole-v1", seed=0), "RewardSum"))
    async with driven(draft=draft, size=(80, 24)) as app:
        for cost, seed in (("9.0 µs", True), ("67.70 µs", False)):
            app.app.workspace.show_costs({ENV: cost})
            await app.settle()
            line = app.text("#chain", lines=True).splitlines()[0]
            assert line.startswith("◆ CartPole-v1 ")
            assert cost in line
            assert ("seed 0" in line) is seed


async def test_a_cost_that_would_cut_a_name_is_beside_the_arguments() -> None:
    async with driven("FrameSkipTransform(2)", "RewardSum", size=(80, 24)) as app:
        app.app.workspace.show_costs({0: "0.069 ms", 1: "0.022 ms"})
        await app.settle()
        _, name, arguments, short, *_ = app.text("#chain", lines=True).splitlines()
        assert name == "●  0 FrameSkipTransform"
        assert arguments == "│    2             0.069 ms"
        assert short == "●  1 RewardSum     0.022 ms"


async def test_a_long_value_is_below_its_name() -> None:
    async with driven("VecNorm(in_keys=['observation'], decay=0.99)", size=(60, 20)) as app:
        lines = [line.strip(" │") for line in app.text("#chain", lines=True).splitlines()]
        assert {"in_keys=", '["observation"],', "decay=0.99"} <= {*lines}


async def test_a_narrow_reading_shows_its_latest_number_whole() -> None:
    async with driven("RewardScaling(0.0, 0.1)", size=(60, 20)) as app:
        numbers = (-0.0731, -0.0525, -0.0411, -0.0364, -0.0345)
        reading = StageReading(0, 29_500, "reward", numbers, before=-0.345, is_changed=True)
        app.app.workspace.show_readings([reading])
        await app.settle()
        assert "→ -0.035" in app.text("#chain")
        assert "…" not in app.text("#chain")


async def test_a_description_that_arrives_while_the_list_closes_is_dropped() -> None:
    async def describe(name: str) -> str:
        # What a close does first.
        await screen.query_one("#choose-description").remove()
        described.set()
        return f"about {name}"

    described = asyncio.Event()
    screen = ChoiceScreen("Envs", [Choice("one", "one")], describe=describe)
    async with driven(env=None) as app:
        await app.app.push_screen(screen)
        await asyncio.wait_for(described.wait(), 30)
        await app.settle()
        assert app.app.screen is screen
        await app.press("escape")


async def test_a_long_chain_marks_what_it_cuts_and_hides_no_stage() -> None:
    stages = ["RewardScaling(0.0, 0.99)", "ObservationNorm(0.0, 1.01)"] * 12
    async with driven(*stages, size=(80, 24)) as app:
        chain = app.find("#chain")
        for keys in ((), ("down", *["down"] * 19), ("end",)):
            await app.press(*keys)
            lines = app.text("#chain", lines=True).splitlines()
            assert len(lines) == chain.size.height
            assert all(line[:1] in "●▲△◆◇" for line in lines), "each line is a row of the chain"
            assert all(
                "0.99" in line or line.rstrip("▁▂▃▄▅▆▇█ ").endswith("…")
                for line in lines
                if "RewardScaling" in line
            )
        assert "output" in lines[-1]

"""Envs of other libraries in the app: their wrappers are stages that cannot be edited."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tdx
from tdx.inspection.live.stack_env import StackEnv
from tdx.inspection.live.views import StageReading
from tdx.inspection.overview import EnvCache, inspect_overview
from tdx.pipeline import EnvConfig, Pipeline
from tdx.pipeline.draft import FIRST_WRAPPER_NUMBER, Draft
from tdx.pipeline.model import StackFacts, Wrapper
from tdx.stacks.building import build_stack
from tdx.tui.contract.worker import compare_contract, freeze_contract
from tdx.tui.live.messages import (
    Command,
    CommandEnvelope,
    LiveState,
    Reset,
    RunSteps,
    SetActionSource,
    SetPanes,
    SetRate,
)
from tdx.tui.live.requests import RunSession
from tdx.tui.live.worker import LivePlayer
from tdx.tui.profile.requests import FindAdvice, MeasurePipeline
from tests.programs import exhaustive
from tests.tui import wrapped_env
from tests.tui.driving import driven, job
from tests.tui.idle import resize
from tests.tui.pictures import until
from tests.tui.playing import playing

MODULE = wrapped_env.__name__
MAKE = f"{MODULE}:make"
NAMES = ["OrderEnforcing", "TimeLimit", "RescaleAction", "NormalizeObservation"]
REASON = f"the stages are Python code of {MAKE}: edit them there"


# Chain and specs


@exhaustive
async def test_wrappers_of_a_factory_are_stages_that_cannot_be_edited() -> None:
    async with driven(env=MAKE, allow_code=True) as app:
        # The wrappers are stages with arguments and specs.
        assert app.names == [*NAMES, "FrameStackObservation"]
        assert "5 stages · gymnasium" in app.text("ChainPane")
        assert "● 2 RescaleAction" in app.text("ChainPane")
        assert "min_action=-1.0" in app.text("ChainPane")
        await app.press("down", "down", "down")
        stage = app.text("StageTab")
        assert "RescaleAction inverse gymnasium/wrappers/transform_action.py:" in stage
        assert "min_action -1.0 max_action 1.0" in stage
        assert "Read-only: the stages are Python code" in stage
        await app.press("2")
        specs = app.text("SpecsTab")
        assert "after 2 RescaleAction" in specs
        assert "~ action [1] float32 -1 … 1 ← -2 … 2" in specs
        await app.press("escape", "end", "2")
        assert "~ observation [4,3] float32" in app.text("SpecsTab")
        assert "observation@2 by 4 FrameStackObservation" in app.text("#lineage")

        # Edits of a wrapper are refused with a reason.
        await app.open(env=MAKE)
        await app.press("down", "down")
        for key in ("space", "d", "c", "K", "J"):
            app.notices.clear()
            await app.press(key)
            assert app.notices == [REASON], key
        await app.press("enter")
        assert app.names == [*NAMES, "FrameStackObservation"]
        assert not app.app.workspace.editor.is_modified

        # Adding a transform makes the env the base of a tdx chain.
        await app.open(env=MAKE)
        await app.press("down", "down", "a", "text:StepCounter", "enter", "escape")
        assert app.stages == ["StepCounter"]
        assert app.place == 0
        assert "● 0 StepCounter" in app.text("ChainPane")
        app.app.workspace.undo()
        await app.settle()
        assert app.names == [*NAMES, "FrameStackObservation"]

        # Settings of the env can be edited.
        await app.open(env=MAKE)
        app.app.workspace.edit(
            "set seed", app.app.workspace.draft.with_env(EnvConfig(MAKE, seed=3))
        )
        await app.settle()
        assert app.names == [*NAMES, "FrameStackObservation"]
        assert app.app.workspace.editor.draft == Draft(EnvConfig(MAKE, seed=3))

        # Status bar names the function that was opened.
        await app.open(env=MAKE)
        assert app.names
        assert "new pipeline" not in app.text("#status")
        assert MAKE.rpartition("/")[2] in app.text("#status")


@exhaustive
async def test_problems_of_a_factory_are_at_their_wrapper() -> None:
    async with driven(env=f"{MODULE}:make_untrue", allow_code=True) as app:
        # Checking with steps names the wrapper that violates its space.
        assert "✕" not in app.text("ChainPane")
        await app.press("k")
        await app.settle()
        assert "✕ 2 _Untrue" in app.text("ChainPane")
        await app.press("end", "up", "1")
        assert "TDX401 it holds" in app.text("StageTab")

        # Checking with steps names the wrapper that raises.
        await app.open(env=f"{MODULE}:make_failing")
        await app.press("k")
        await app.settle()
        assert "✕ 2 _Failing" in app.text("ChainPane"), (app.notices, app.text())

        # A wrapper without a space is the stage that fails.
        await app.open(env=f"{MODULE}:make_without_space")
        chain = app.text("ChainPane")
        assert "✕ 2 _Untrue" in chain
        assert "its spaces ca" in chain

        # The stages of a tdx env are shown and its chain can be extended.
        await app.open(env=f"{MODULE}:make_native")
        assert app.names == ["StepCounter"]
        assert "1 stage · tdx" in app.text("ChainPane")
        await app.press("down", "2")
        assert "+ step_count" in app.text("SpecsTab")
        await app.press("escape", "a", "text:RewardSum", "enter", "escape")
        assert app.names == ["RewardSum"]
        assert "● 0 RewardSum" in app.text("ChainPane")
        app.app.workspace.select(-1)
        await app.press("2")
        assert "env with its own StepCounter" in app.text("SpecsTab")


@pytest.mark.parametrize(
    ("factory", "message"),
    [
        ("fail", "fail() raised ValueError: no display (tests/tui/wrapped_env.py:67)"),
        ("forget", "forget() returned nothing"),
    ],
)
@exhaustive
async def test_a_broken_factory_is_an_error_of_the_env(factory: str, message: str) -> None:
    async with driven(env=f"{MODULE}:{factory}", allow_code=True, size=(120, 24)) as app:
        assert app.app.workspace.status.problems[None].message == message
        assert message[:24] in app.text("ChainPane")
        assert app.text("StageTab").count("F12 shows the traceback") <= 1
        for place in ("up", "end"):
            await app.press("escape", place, "2")
            # Without specs, both the env and the output show why.
            assert message[:24] in app.text("SpecsTab")


@exhaustive
async def test_without_allow_code_the_factory_is_not_imported() -> None:
    async with driven(env=MAKE) as app:
        assert "importing code is not allowed" in app.app.workspace.status.problems[None].message


@exhaustive
async def test_an_env_of_a_file_can_be_chosen_in_the_app(tmp_path: Any) -> None:
    file = tmp_path / "own_env.py"
    file.write_text("import gymnasium\ndef make():\n    return gymnasium.make('CartPole-v1')\n")
    async with driven(env=None, allow_code=True) as app:
        await app.press("e", f"text:{file}:make", "enter")
        assert "TimeLimit" in app.names


def test_the_env_is_created_once_while_its_chain_is_inspected() -> None:
    cache = EnvCache(allow_code=True)
    pipeline = Pipeline.of(MAKE)
    first, second = cache.stack(pipeline), cache.stack(pipeline)
    assert first is second
    native = Pipeline.of(f"{MODULE}:make_native", "RewardSum")
    assert cache.stack(native) is None
    assert cache.base(native.env) is cache.base(native.env)
    overview = inspect_overview(native, cache)
    assert overview.stack is None
    assert overview.env_stages == ("StepCounter",)
    cache.close()


def test_a_draft_with_wrappers_keeps_disabled_stages_of_the_pipeline() -> None:
    draft = Draft.of(Pipeline.of(MAKE, "RewardSum")).toggle(0)
    facts = StackFacts(MAKE, "gymnasium", (Wrapper("TimeLimit"), Wrapper("ClipAction")))
    shown = draft.around(facts)
    assert [stage.number for stage in shown.stages] == [
        FIRST_WRAPPER_NUMBER,
        FIRST_WRAPPER_NUMBER + 1,
        0,
    ]
    assert shown.pipeline() == draft.pipeline()
    assert shown.toggle(2).edited() == draft.toggle(0)
    assert shown.move(0, 1).edited() is None
    assert shown.duplicate(1).edited() is None


# Live


@contextmanager
def player(
    factory: str = "make", seed: int | None = None
) -> Iterator[tuple[LivePlayer, dict[str, Any]]]:
    """Session of a stack with the latest pushed value of each topic."""
    pipeline = Pipeline.of(f"{MODULE}:{factory}")
    stack, topics = build_stack(pipeline, True), dict[str, Any]()
    request = RunSession(pipeline, True, rate=None)
    with stack.seeded(seed):
        found = LivePlayer(StackEnv(stack), request, topics.__setitem__)
        do(found, SetPanes(plots=("reward",), episodes=5, cells=5))
        yield found, topics
    stack.close()


def do(found: LivePlayer, *commands: Command) -> LiveState:
    """Execute commands, and run until the session pauses."""
    for command in commands:
        found.run_once([CommandEnvelope(1, command)])
        while found.is_running:
            found.run_once([])
    found.run_once([])
    return found.state()


def test_step_shows_the_values_written_by_each_wrapper() -> None:
    with player() as (found, topics):
        state = do(found, RunSteps(steps=2))
        assert (state.steps, state.problem) == (2, None)
        written = {
            place.title: [topics["trace"].values[at].version for at in place.written]
            for place in topics["trace"].places
        }
        assert written["2 RescaleAction"] == []
        assert written["3 NormalizeObservation"] == ["observation@1"]
        assert written["4 FrameStackObservation"] == ["observation@2"]
        inverse = [each.title for each in topics["trace"].places if each.lane == "inverse"]
        assert inverse == ["random", "2 RescaleAction"]
        assert topics["info"].fields[0].low == -1.0


def test_a_vec_env_of_stable_baselines3_is_stepped() -> None:
    with player("make_vec_normalize") as (found, topics):
        state = do(found, RunSteps(steps=3))
        assert (state.steps, state.problem) == (3, None)
        names = [place.name for place in topics["trace"].places if place.kind == "stage"]
        assert names[-2:] == ["DummyVecEnv", "VecNormalize"]
        assert [cell.steps for cell in topics["cells"]] == [3, 3]


def test_done_flags_of_a_vec_env_follow_its_infos() -> None:
    with player("make_vec_normalize", seed=0) as (found, topics):
        state = do(found, RunSteps(until="terminated"))
        assert "terminated is set" in state.message
        assert {each.end for each in topics["episodes"] if each.end} == {"terminated"}


@pytest.mark.parametrize(
    ("until", "message", "steps"),
    [
        ("truncated", "truncated is set", 200),
        ("reward < -100 or done", "done is set", 200),
        ("reward < 0", "reward < 0", 1),
    ],
)
@exhaustive
def test_stop_conditions_work_on_a_stack(until: str, message: str, steps: int) -> None:
    with player(seed=0) as (found, _):
        state = do(found, RunSteps(until=until))
        assert state.steps == steps
        assert message in state.message


def test_spec_condition_stops_at_the_violating_wrapper() -> None:
    with player("make_untrue") as (found, _):
        state = do(found, RunSteps(until="spec"))
        assert state.message.startswith("2 _Untrue, key 'observation': ")


def test_an_unknown_key_is_rejected_before_the_first_step() -> None:
    with player() as (found, _):
        state = do(found, RunSteps(until="rewrd > 1"))
        assert state.problem is not None
        assert state.problem.hint == "did you mean reward?"
        assert state.steps == 0


def test_actions_are_random_zero_manual_or_of_a_function() -> None:
    with player() as (found, topics):
        for source, numbers, actor, action in (
            ("manual", (("action", 0, 0.5),), "given", "0.5"),
            ("zero", (), "given", "0"),
            (f"{MODULE}:always_zero", (), "always_zero", "0"),
        ):
            state = do(found, SetActionSource(source, numbers))
            assert state.problem is None, state.problem
            do(found, RunSteps(steps=1))
            trace = topics["trace"]
            assert trace.places[0].name == actor
            assert trace.values[trace.places[0].written[0]].text == action
        state = do(found, SetActionSource("mlp:weights.safetensors"))
        assert state.problem is not None
        assert "acts on the TensorDicts of a tdx env" in state.problem.message


def test_a_seed_reproduces_a_session() -> None:
    def rewards(seed: int) -> Any:
        with player(seed=seed) as (found, topics):
            do(found, RunSteps(steps=5))
            return topics["episodes"][0].total

    assert rewards(3) == rewards(3) != rewards(4)


def test_a_reset_takes_a_seed() -> None:
    with player() as (found, topics):
        do(found, RunSteps(steps=3), Reset(seed=7))
        assert topics["trace"].phase == "reset"
        first = topics["trace"].values[0].text
        do(found, RunSteps(steps=2), Reset(seed=7))
        assert topics["trace"].values[0].text == first


def test_vector_env_has_rows_and_resets_itself() -> None:
    with player("make_vector") as (found, topics):
        do(found, SetRate(None), RunSteps(steps=120))
        assert topics["info"].num_envs == 3
        assert topics["trace"].row == 0
        ended = [each for each in topics["episodes"] if each.end]
        assert {each.end for each in ended} == {"terminated"}
        assert len(topics["cells"]) == 3
        assert sum(each.steps for each in found.session.episodes(0, 1000)) == 120


@exhaustive
async def test_the_live_tab_shows_the_values_of_each_wrapper() -> None:
    def make(pipeline: Pipeline) -> Any:
        return StackEnv(build_stack(pipeline, True))

    async with playing(env=MAKE, make=make) as live:
        await live.press("s")
        shown = live.text()
        assert "↑ 2 RescaleAction" in shown
        assert "↓ 3 NormalizeObservation" in shown


async def test_a_long_chain_of_wrappers_is_legible_in_a_narrow_pane() -> None:
    changed = [
        StageReading(place, 9_000, "reward", (-0.064,) * 2, -1.25, is_changed=True)
        for place in (6, 8)
    ]
    async with driven(env=f"{MODULE}:make_long", allow_code=True, size=(80, 24)) as app:

        def chain() -> list[str]:
            return app.text("#chain", lines=True).splitlines()

        assert "●  3 RecordEpisodeStatistics" in chain(), "the name has the last column too"
        assert "│    disable_…nforcing=False" in chain(), "the name is shortened, not the value"
        same = [StageReading(place, 9_000) for place in (0, 1, 2, 3, 4, 5, 7, 9)]
        app.app.workspace.show_readings([*changed, *same])
        await app.settle()
        assert chain().count("│    ▄▄ -1.2 → -0.064") == 2
        assert "changes nothing" not in app.text("#chain"), "there is no room for these lines"
        await resize(app.pilot, 60, 16)
        await app.settle()
        shown = app.text("#chain", lines=True)
        assert "6 Normaliz… → -0.064" in shown, "the name gives way to the number"
        assert "10 · gymnasium" in app.text("ChainPane")


# Profile


def test_the_profile_has_a_row_for_each_wrapper() -> None:
    from tdx.tui.profile.worker import measure_pipeline

    request = MeasurePipeline(
        Pipeline.of(MAKE), ("planned",), steps=20, repeats=2, warmup=2, allow_code=True
    )
    costs = measure_pipeline(request, job())
    (mode,) = costs.modes
    assert mode.error is None
    parts = {row.label for row in mode.rows}
    wrappers = [f"{at} {name}" for at, name in enumerate((*NAMES, "FrameStackObservation"))]
    assert {"env Pendulum-v1", *wrappers} <= parts


def test_a_step_that_raises_while_it_is_measured_names_the_stage() -> None:
    from tdx.tui.profile.worker import measure_pipeline

    request = MeasurePipeline(
        Pipeline.of(f"{MODULE}:make_failing"), ("planned",), 20, 1, 2, allow_code=True
    )
    error = str(measure_pipeline(request, job()).error)
    assert error.startswith("stage 2 (_Failing): it raised RuntimeError in a step: sensor lost")


def test_no_suggestions_for_a_foreign_stack() -> None:
    from tdx.tui.profile.worker import find_advice

    request = FindAdvice(
        Pipeline.of(MAKE), ("planned",), steps=5, repeats=1, warmup=1, allow_code=True
    )
    found = find_advice(request, job())
    assert found.error is not None
    assert "which tdx does not edit" in found.error


# Checkpoints


CHECKPOINTS = Path(__file__).parents[2] / "sample_pipelines" / "checkpoints"
SOUND, RENAMED = str(CHECKPOINTS / "sound"), str(CHECKPOINTS / "renamed_statistics")
STEPS = ["rename_observations", "to_batch", "device", "normalizer", "device", "unnormalizer"]


@exhaustive
async def test_processors_of_a_checkpoint_are_stages(tmp_path: Path) -> None:
    async with driven(env=SOUND) as app:
        # The processors of a checkpoint are stages with specs.
        assert app.names == STEPS
        chain = app.text("ChainPane")
        assert "6 stages · checkpoint" in chain
        assert "new pipeline" not in app.text("#status")
        assert "sound" in app.text("#status")
        assert "✕" not in chain
        await app.press("down", "down", "2")
        assert "after 1 to_batch ▾ ↓ forward" in app.text("SpecsTab")
        await app.press("4")
        shown = app.text("ProfileTab")
        assert "observed with samples" in shown
        assert "edit the code" not in shown

        # Stages of a checkpoint cannot be edited.
        await app.open(env=SOUND)
        await app.press("down")
        for keys in (["space"], ["d"], ["a", "text:StepCounter", "enter"]):
            app.notices.clear()
            await app.press(*keys)
            assert f"the stages are the files of {SOUND}, which tdx does not edit" in app.notices
            assert app.names == STEPS

        # Findings of a checkpoint are at their stages.
        await app.open(env=RENAMED)
        chain = app.text("ChainPane")
        assert "✕ 3 normalizer" in chain
        assert "✕ 5 unnormalizer" in chain
        await app.press("down", "down", "down", "down", "1")
        assert "TDX601 'action' passes unchanged" in app.text("StageTab")

        # A stage in a file with a checkpoint is refused.
        await app.open("StepCounter", env=SOUND)
        problem = app.app.workspace.status.problems[None]
        assert "does not apply to a policy checkpoint" in problem.message

        # A checkpoint that cannot be read is an error.
        (tmp_path / "policy_preprocessor.json").write_text("{")
        await app.open(env=str(tmp_path))
        problem = app.app.workspace.status.problems[None]
        assert "policy_preprocessor.json" in problem.message
        assert "✕" in app.text()


async def test_nothing_is_claimed_of_a_checkpoint_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "policy_preprocessor.json").write_text("{")
    async with driven(env=str(tmp_path), size=(80, 24)) as app:
        assert "◇ output unknown" in app.text("#chain")
        assert "0 stages" not in app.text("ChainPane")
        assert app.text("#status").startswith(f"tdx {tmp_path.name}")
        await app.press("home")
        stage = app.text("StageTab")
        assert "is not valid JSON" in stage
        assert "from_pixels" not in stage, "settings of an env of tdx"


async def test_statistics_of_a_checkpoint_are_listed_by_feature_and_element() -> None:
    async with driven(env=SOUND, size=(80, 24)) as app:
        await app.press("down", "down", "down", "down")
        stage = app.text("StageTab")
        assert "observation.state: MEAN_STD, observation.images.top: MEAN_STD, action" in stage
        assert "mean std max min 0 0.7484 2.962 9.267 -7.784 1 1.217" in stage
        await app.press("1", *["pagedown"] * 3)
        stage = app.text("StageTab")
        assert "action mean std max min 0 1.503 5.927 18.51 -15.52" in stage
        assert "0.9999 3.1e-04" in stage, "numbers of neighboring columns are apart"
        await app.press("escape", "down", "down")
        stage = app.text("StageTab")
        assert "action mean std max min 0 1.503 5.927" in stage
        assert "also in the file: observation.images.top, observation.state" in stage
        # Without their statistics, the modes say so.
        await app.open(env=RENAMED)
        await app.press("down", "down", "down", "down", "1", "end")
        stage = app.text("StageTab")
        assert "also in the file: so100.buffer.action" in stage
        await app.press("home")
        assert "MEAN_STD without statistics" in app.text("StageTab")


async def test_a_checkpoint_is_compared_with_another_one_beside_it() -> None:
    async with driven(env=SOUND, size=(80, 24)) as app:
        await app.press("C")
        assert "merged_statistics checkpoint" in app.text()
        assert "sound checkpoint" not in app.text()
    merged = compare_contract(Pipeline.of(SOUND), str(CHECKPOINTS / "merged_statistics"))
    (shown,) = (stage for stage in merged.stages if stage.differences)
    assert [key.key for key in shown.keys] == ["observation.images.top", "observation.state"]
    assert shown.a is not None
    assert "observation.state" in shown.a.specs


@exhaustive
async def test_live_shows_samples_of_a_checkpoint_draws_features_and_no_rewards() -> None:
    def make(pipeline: Pipeline) -> Any:
        return StackEnv(build_stack(pipeline))

    async with playing(env=SOUND, make=make, size=(120, 40)) as live:
        await live.press("s")
        shown = live.text()
        assert "↑ 5 unnormalizer" in shown
        assert "~ observation.state@1" in shown
        await resize(live.pilot, 80, 24)
        await live.settle()
        assert "↑ 5 unnormalizer" in live.text()
        await resize(live.pilot, 120, 40)
        await live.press("s", "s")
        assert [plot.name for plot in live.tab.panes.plots.curves] == [
            *("observation.state[0]", "action[0]", "observation.state[1]", "action[1]")
        ]
        assert all(plot.latest is not None for plot in live.tab.panes.plots.curves)
        shown = live.text()
        assert "reward" not in shown
        assert "return" not in shown


def test_actions_of_a_checkpoint_are_random_zero_or_manual() -> None:
    pipeline, topics = Pipeline.of(SOUND), dict[str, Any]()
    stack = build_stack(pipeline)
    with stack.seeded(0):
        found = LivePlayer(
            StackEnv(stack), RunSession(pipeline, False, rate=None), topics.__setitem__
        )
        do(found, SetPanes(plots=(), episodes=5, cells=5))
        for source in ("random", "zero", "manual"):
            state = do(found, SetActionSource(source), RunSteps(steps=1))
            assert (state.problem, topics["trace"].phase) == (None, "step")
    written = {place.title for place in topics["trace"].places if place.written}
    assert {"1 to_batch", "3 normalizer", "5 unnormalizer"} <= written
    stack.close()


def test_the_profile_of_a_checkpoint_has_a_row_for_each_step() -> None:
    from tdx.tui.profile.worker import find_advice, measure_pipeline

    pipeline = Pipeline.of(SOUND)
    request = MeasurePipeline(pipeline, ("planned",), steps=20, repeats=2, warmup=2)
    (mode,) = measure_pipeline(request, job()).modes
    assert mode.error is None
    parts = {row.label.removesuffix(" (2)") for row in mode.rows if row.work == "stage"}
    assert parts == {f"{at} {name}" for at, name in enumerate(STEPS)}
    advice = find_advice(FindAdvice(pipeline, ("planned",), steps=5, repeats=1, warmup=1), job())
    assert advice.error == "no changes to try: the stages are files, which tdx does not edit"


@pytest.fixture
def recorded(tmp_path: Path) -> str:
    """Samples of the sound checkpoint, each number of which is 7."""
    path = tmp_path / "recorded.npz"
    arrays: dict[str, Any] = {"observation.state": np.full((3, 6), 7, np.float32)}
    np.savez(path, **arrays)
    return str(path)


@exhaustive
async def test_samples_of_a_checkpoint_are_chosen_in_the_app(recorded: str) -> None:
    async with driven(env=SOUND) as app:
        await app.press("1")
        assert "Samples: drawn from the specs" in app.text("StageTab")
        app.app.workspace.choose_samples(recorded)
        await until(app, "Samples: from")
        assert app.names == STEPS
        app.app.workspace.choose_samples("missing.npz")
        await until(app, "missing.npz")
        assert app.app.workspace.status.problems


@exhaustive
def test_contract_of_a_checkpoint_is_recorded_on_the_chosen_samples(
    tmp_path: Path, recorded: str
) -> None:
    folder = str(tmp_path / "contract")
    pipeline = Pipeline.of(SOUND)
    freeze_contract(pipeline, folder, samples=recorded)
    recording = tdx.load_contract(folder).recording
    assert recording is not None
    assert "7." in repr(recording.roots[0])
    same = compare_contract(pipeline, folder, samples=recorded)
    other = compare_contract(Pipeline.of(RENAMED), folder, samples=recorded)
    assert same.report.same
    assert not other.report.same

"""An edit replays the previous rollout; a branch replays it up to a step."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from tdx.envs import EnvBase
from tdx.pipeline import Pipeline, build_checked_env, parse_stage
from tdx.tui.live.requests import RunSession
from tdx.tui.live.worker import LivePlayer, Rollouts
from tests.inspection.live.stages import Ragged
from tests.programs import exhaustive
from tests.tui.idle import resize
from tests.tui.playing import Live, playing


async def edit(app: Live, place: int, stage: str) -> None:
    """Replace a stage, and wait until the session has restarted."""
    workspace = app.app.workspace
    count = len(app.backend.players)
    workspace.edit("edit", workspace.draft.replace(place, parse_stage(stage)))
    await restarted(app, count)


async def restarted(app: Live, count: int) -> None:
    """Wait for the next session."""
    while len(app.backend.players) <= count:
        await app.pilot.pause(0.02)
    await app.settle()


def rewards(app: Live, player: int = -1) -> list[float]:
    """Return the rewards of all steps of a session."""
    rollout = app.backend.players[player].session.rollout()
    found: list[float] = rollout["next", "reward"].flatten().tolist()
    return found


@exhaustive
async def test_edit_replays_the_rollout_and_marks_the_first_difference() -> None:
    async with playing("RewardScaling(0.0, 1.0)", "RewardSum", size=(130, 40)) as app:
        await app.press("n", "text:10", "enter")
        await edit(app, 0, "RewardScaling(0.0, 0.5)")
        assert rewards(app) == [0.5 * each for each in rewards(app, 0)]
        cause = "TDX506 scale: stage 0 (RewardScaling), key 'reward': it is multiplied by 0.5"
        assert (
            app.note == f"■ repeated 10 steps; {cause}, from step 1 (hint: multiply by 2); "
            "also differs: episode_reward from step 1"
        )
        state = app.tab.connection.state
        assert state is not None
        assert dict(state.differences or ()) == {"reward": 1, "episode_reward": 1}
        assert "≠1" in app.text("#live-values")
        assert app.tab.panes.values.key == "reward", "the cursor is at the first difference"
        await app.press("home", "x")
        assert app.shown == 1
        assert "differences to the earlier rollout" in app.text("#live-values")
        assert cause in app.note, "it stays while the rollouts are compared"
        assert "observation@0" in app.text("#live-values")
        before, now = rewards(app, 0)[0], rewards(app)[0]
        assert f"{before:.3f}"[:5] in app.text("#live-values")
        assert f"{now:.3f}"[:5] in app.text("#live-values")
        assert f"earlier {rewards(app, 0)[-1]:.3g}" in app.text("#live-plots")
        assert "Y keep u undo B branch" in app.text("#live-replay")
        assert "band" in plot_backgrounds(app)
        await app.press("Y")
        assert "values" in app.text("#live-values")
        assert "earlier" not in app.text("#live-plots")
        assert cause not in app.note
        assert not app.tab.query_one("#live-replay").display
        assert "band" not in plot_backgrounds(app)


@exhaustive
async def test_long_note_ends_with_an_ellipsis_where_it_is_cut() -> None:
    async with playing("RewardScaling(0.0, 1.0)", "RewardSum", size=(34, 18)) as app:
        await app.press("n", "text:10", "enter")
        await edit(app, 0, "RewardScaling(0.0, 0.5)")
        lines = app.text("#live-note", lines=True).splitlines()
        assert lines[0].startswith("■ repeated 10 steps")
        assert lines[-1].rstrip().endswith("…")
        assert max(map(len, lines)) <= 34
        assert "≠1" in app.text("#live-values"), "the values have room"
        await resize(app.pilot, 100, 40)
        await app.drawn()
        assert app.note.endswith("episode_reward from step 1")


def plot_backgrounds(app: Live) -> set[str]:
    """Return the backgrounds of the plots."""
    return {back for row in app.tab.panes.plots.all_rows() for _, _, back in row}


async def test_a_branch_is_compared_with_the_earlier_rollout_at_its_last_step() -> None:
    async with playing("RewardSum", size=(130, 40)) as app:
        await app.press("n", "text:5", "enter", "left", "left")
        count = len(app.backend.players)
        await app.press("B")
        await restarted(app, count)
        at_branch, at_end = rewards(app, 0)[2], rewards(app, 0)[4]
        assert f"reward {at_branch:.3g} earlier {at_branch:.3g} " in app.text("#live-plots")
        assert f"earlier {at_end:.3g} " not in app.text("#live-plots")


@exhaustive
async def test_a_key_that_differs_is_plotted_without_being_chosen() -> None:
    async with playing("ObservationNorm(0.0, 1.0)", size=(130, 40)) as app:
        await app.press("n", "text:5", "enter")
        assert "observation" not in app.text("#live-plots")
        await edit(app, 0, "ObservationNorm(0.0, 2.0)")
        assert "observation" in app.text("#live-plots")
        await app.press("Y")
        assert "observation" not in app.text("#live-plots")


@exhaustive
async def test_image_of_the_earlier_rollout_is_between_those_around_the_stage() -> None:
    def make(pipeline: Pipeline) -> EnvBase:
        return build_checked_env(pipeline, base=Ragged())

    async with playing(
        *("ToTensorImage", "Crop(12, 8)", "CatFrames(2, -3)"), make=make, size=(80, 30)
    ) as app:
        await app.press("s", "v", "v")
        for title in ("Pendulum-v1 8×12×3", "0 ToTensorImage", "1 Crop", "2 CatFrames", "t-1"):
            assert title in app.text("#live-images")
        await app.press("down", "down")
        assert app.app.workspace.place == 1
        shown = app.text("#live-images")
        assert "Pendulum-v1" not in shown
        assert "CatFrames" not in shown, "only the images before and after the stage"
        count = len(app.backend.players)
        workspace = app.app.workspace
        workspace.edit("edit", workspace.draft.replace(1, parse_stage("Crop(10, 8)")), place=1)
        await restarted(app, count)
        before, now = app.text("#live-images").split("earlier 1 Crop")
        assert "0 ToTensorImage" in before
        assert "1 Crop" not in before
        assert "1 Crop" in now
        await app.press("up", "up")
        assert "Pendulum-v1" in app.text("#live-images")


@exhaustive
async def test_value_of_a_new_stage_is_compared_with_the_previous_version() -> None:
    async with playing("RewardSum", size=(130, 40)) as app:
        await app.press("n", "text:5", "enter")
        count, workspace = len(app.backend.players), app.app.workspace
        stage = parse_stage("RewardClipping(-0.5, 0.5)")
        workspace.edit("add", workspace.draft.insert(1, [stage]))
        await restarted(app, count)
        assert "missing" not in app.text("#live-values")
        assert f"{rewards(app, 0)[-1]:.3f}"[:5] in app.text("#live-values")
        assert "→ -0.5" in app.text("#live-values")


@exhaustive
async def test_undo_restores_the_rollout() -> None:
    async with playing("RewardScaling(0.0, 1.0)") as app:
        await app.press("n", "text:10", "enter")
        first, before = app.player, rewards(app)
        await edit(app, 0, "RewardScaling(0.0, 0.5)")
        await app.press("n", "text:5", "enter")
        assert len(rewards(app)) == 15
        count = len(app.backend.players)
        app.app.workspace.undo()
        await restarted(app, count)
        assert app.player is first
        assert rewards(app) == before
        assert "step 10" in app.note
        await app.press("s")
        assert len(rewards(app)) == 11


def test_run_continues_after_the_replay() -> None:
    rollouts = Rollouts()
    chains = (Pipeline.of("Pendulum-v1", *stages) for stages in ((), ("RewardSum",)))
    first, second = (RunSession(chain, rate=None, repeat=True) for chain in chains)
    earlier = rollouts.open(first, lambda topic, value: None)
    for _ in range(20):
        earlier.session.advance()
    player = rollouts.open(replace(second, is_running=True), lambda topic, value: None)
    while player.session.tracer.steps <= 25:
        player.run_once([])
    assert player.is_running
    assert player.replay is not None
    assert player.replay.steps == 20
    assert player.replay.differences == {}
    rollouts.close()


@exhaustive
async def test_branch_replays_up_to_the_shown_step() -> None:
    async with playing("StepCounter(4)") as app:
        await app.press("n", "text:10", "enter")
        observed = [trace.env_tensordict["observation"] for trace in app.player.session.history]
        await app.press(*["left"] * 4)
        at = app.shown
        await app.press("B")
        branch = app.player.session
        assert app.shown == branch.last == at
        for trace, other in zip(branch.history, observed, strict=False):
            assert torch.equal(trace.env_tensordict["observation"], other)
        assert app.note.startswith("■ branch at step")
        await app.press("i", "text:zero", "enter", "s", "s")
        state = app.tab.connection.state
        assert state is not None
        assert min(dict(state.differences or ()).values()) > at
        assert branch.tracer.last is not None
        assert branch.tracer.last.tensordict["action"] == 0


@exhaustive
async def test_branch_pressed_early_is_at_the_selected_step() -> None:
    async with playing("RewardSum") as app:
        await app.press("n", "text:6", "enter")
        await app.send("left", "left", "B")
        await restarted(app, 1)
        assert app.player.session.last == 4


@exhaustive
async def test_branch_without_a_step_is_refused() -> None:
    async with playing("RewardSum") as app:
        await app.press("B")
        assert "nothing to branch from" in app.note
        assert len(app.backend.players) == 1


@exhaustive
async def test_actions_outside_the_new_spec_are_not_replayed() -> None:
    async with playing("RewardSum") as app:
        await app.press("n", "text:5", "enter")
        count = len(app.backend.players)
        draft = app.app.workspace.draft
        stage = parse_stage("ActionDiscretizer(5)")
        app.app.workspace.edit("add", draft.insert(1, [stage]))
        await restarted(app, count)
        assert "do not fit the action spec" in app.note
        assert app.player.session.tracer.steps == 0


@exhaustive
async def test_a_chain_that_fails_keeps_the_rollout_for_the_next_edit() -> None:
    async with playing("RewardScaling(0.0, 1.0)") as app:
        await app.press("n", "text:5", "enter")
        before = rewards(app)
        workspace = app.app.workspace
        workspace.edit("edit", workspace.draft.replace(0, parse_stage("RewardScaling")))
        while app.tab.connection.is_open or "✕" not in app.note:
            await app.pilot.pause(0.02)
        await edit(app, 0, "RewardScaling(0.0, 3.0)")
        assert rewards(app) == pytest.approx([3 * each for each in before])


@exhaustive
def test_worker_keeps_two_rollouts_with_the_same_seed() -> None:
    seen: dict[str, Any] = {}

    def push(topic: str, value: Any) -> None:
        seen[topic] = value

    rollouts = Rollouts()
    requests = [
        RunSession(Pipeline.of("Pendulum-v1", f"RewardScaling(0.0, {scale})"), repeat=True)
        for scale in (1.0, 2.0, 3.0)
    ]
    players: list[LivePlayer] = []
    for request in requests:
        player = rollouts.open(request, push)
        while player.run_once([]) == 0:
            pass
        if not players:
            for _ in range(20):
                player.session.advance()
        players.append(player)
        totals = player.session.rollout()["next", "reward"].sum()
        assert totals == pytest.approx(
            len(players) * float(players[0].session.rollout()["next", "reward"].sum()), rel=1e-5
        )
    assert rollouts.open(requests[1], push) is players[1]
    assert rollouts.open(requests[0], push) not in players
    rollouts.close()

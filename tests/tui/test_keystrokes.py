"""Number of key presses that common tasks take."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import tdx
from tdx.pipeline import Pipeline
from tdx.stacks.building import build_stack
from tdx.tui.backend.client import Ticket
from tdx.tui.backend.messages import Request
from tdx.tui.backend.requests import ListEnvs
from tdx.tui.contract.contract_screen import ContractScreen
from tests.programs import exhaustive
from tests.tui.driving import driven
from tests.tui.idle import until
from tests.tui.inline_backend import InlineBackend
from tests.tui.playing import PlayingBackend, playing

_PONG = ("ToTensorImage", "GrayScale", "Resize(w=84)", "CatFrames(N=4, dim=-3)")


class ListingBackend(InlineBackend):
    """Backend that lists envs and creates none, as while specs are computed."""

    def _answer(self, ticket: Ticket[Any], request: Request[Any]) -> None:
        if isinstance(request, ListEnvs):
            super()._answer(ticket, request)


@pytest.mark.parametrize(
    ("env", "words", "chain", "limit"),
    [
        ("ALE/Pong-v5", ("pong", "tti", "gs", "res 84", "cf 4 -3"), _PONG, 29),
        ("CartPole-v1", ("", "rs", "sc"), ("RewardSum", "StepCounter"), 9),
    ],
)
@exhaustive
async def test_few_keys_compose_a_chain(
    env: str, words: tuple[str, ...], chain: tuple[str, ...], limit: int
) -> None:
    if env.startswith("ALE/"):
        pytest.importorskip("ale_py")
    keys = ["e", *words[0], "enter", "a"]
    for each in words[1:]:
        keys += [*each, "enter"]
    async with driven(env=None, backend=ListingBackend()) as app:
        for key in keys:
            await app.send(key)
            await app.delivered()
        assert app.app.workspace.draft.env is not None
        assert (app.app.workspace.draft.env.id, tuple(app.stages)) == (env, chain)
    assert len(keys) <= limit


async def test_two_keys_show_which_stage_makes_the_reward_zero() -> None:
    # `playing` has pressed the first key, 3.
    backend = PlayingBackend()
    stages = ("RewardClipping(-1, 0)", "RewardSum")
    async with playing(*stages, env="CartPole-v1", whole=True, backend=backend) as app:
        await app.pilot.press("space")
        await until(lambda: "1 → 0 at a bound" in app.text("#chain"))


@exhaustive
async def test_two_keys_compare_with_the_contract_in_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    stack = build_stack(Pipeline.of("Pendulum-v1", "RewardSum"))
    tdx.save_contract(tdx.freeze(stack), "contract")
    async with driven("RewardSum", "RewardClipping(-1, 1)") as app:
        await app.press("C", "enter")
        assert isinstance(app.app.screen, ContractScreen)
        await until(lambda: "1 RewardClipping" in app.text("#contract-list"))

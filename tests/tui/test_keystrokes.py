"""Number of key presses that compose common chains in an empty app."""

from __future__ import annotations

from typing import Any

import pytest

from tdx.tui.backend.client import Ticket
from tdx.tui.backend.messages import Request
from tdx.tui.backend.requests import ListEnvs
from tests.tui.driving import driven
from tests.tui.inline_backend import InlineBackend

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

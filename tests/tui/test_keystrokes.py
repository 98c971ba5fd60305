"""Number of keys that it takes to compose common chains, from an empty app."""

from __future__ import annotations

import pytest

from tests.tui.driving import driven

_PONG = ("ToTensorImage", "GrayScale", "Resize(w=84)", "CatFrames(N=4, dim=-3)")


@pytest.mark.parametrize(
    ("env", "words", "chain", "limit"),
    [
        ("ALE/Pong-v5", ("pong", "tti", "gs", "res 84", "cf 4 -3"), _PONG, 30),
        ("CartPole-v1", ("", "rs", "sc"), ("RewardSum", "StepCounter"), 12),
        ("HalfCheetah-v5", ("hal", "vn"), ("VecNorm",), 12),
    ],
)
async def test_few_keys_compose_a_chain(
    env: str, words: tuple[str, ...], chain: tuple[str, ...], limit: int
) -> None:
    if env.startswith("ALE/"):
        pytest.importorskip("ale_py")
    if env.startswith("Half"):
        pytest.importorskip("mujoco")
    async with driven(env=None) as app:
        await app.press("e")
        while "loading" in app.text(".dialog"):
            await app.settle()
        await app.press(f"text:{words[0]}", "enter", "a")
        for each in words[1:]:
            await app.press(f"text:{each}", "enter")
        assert app.app.workspace.draft.env is not None
        assert (app.app.workspace.draft.env.id, tuple(app.stages)) == (env, chain)
        assert app.app.workspace.status.problems == {}
    assert len("ea") + sum(len(each) + len(["enter"]) for each in words) <= limit

"""A replay names the first stage that differs, and in what way."""

from __future__ import annotations

import pytest

from tdx.inspection.live.replay import Replay
from tdx.inspection.live.session import LiveSession
from tdx.pipeline import Pipeline, build_checked_env


def start(stages: list[str]) -> LiveSession:
    """Return a seeded session of a chain."""
    env = build_checked_env(Pipeline.of("Pendulum-v1", *stages))
    env.set_seed(0)
    return LiveSession(env)


@pytest.mark.parametrize(
    ("before", "after", "sentence"),
    [
        (
            ["RewardSum", "ObservationNorm(0.0, 1.0)"],
            ["RewardSum", "ObservationNorm(0.0, 0.5)"],
            "stage 1 (ObservationNorm), key 'observation': it is multiplied by 0.5",
        ),
        (
            ["CatFrames(3, -1, in_keys=['observation'])", "RewardSum"],
            ["CatFrames(3, -1, in_keys=['observation'], padding='constant')", "RewardSum"],
            "stage 0 (CatFrames), key 'observation': at the start of an episode it has zeros "
            "instead of copies of the first step",
        ),
        (
            ["RewardSum"],
            ["RewardSum", "ObservationNorm(1.0, 2.0)"],
            "stage 1 (ObservationNorm), key 'observation': the earlier chain has no such stage; it "
            "is multiplied by 2 and shifted by 1",
        ),
        (
            ["RewardScaling(0.0, 2.0)", "RewardSum"],
            ["RewardSum"],
            "stage 0 (RewardScaling) of the earlier chain, key 'reward': the new chain has no such "
            "stage",
        ),
        (
            ["ObservationNorm(1.0, 2.0)", "RewardScaling(0.0, 3.0)"],
            ["ObservationNorm(1.0, 3.0)", "RewardScaling(0.0, 2.0)"],
            "stage 0 (ObservationNorm), key 'observation': ",
        ),
        (["RewardSum"], ["RewardSum"], ""),
    ],
    ids=["argument", "history", "extra", "missing", "two", "equal"],
)
def test_cause_is_the_first_stage_that_differs(
    before: list[str], after: list[str], sentence: str
) -> None:
    earlier, session = start(before), start(after)
    for _ in range(12):
        earlier.advance()
    replay = Replay(earlier, session)
    while not replay.is_done:
        replay.advance()
    text = replay.describe()
    if sentence.endswith(": "):
        assert (replay.cause.sentence if replay.cause else "").startswith(sentence)
    else:
        assert (replay.cause.sentence if replay.cause else "") == sentence
    assert sentence in text
    is_explained = replay.cause is not None and replay.cause.explanation is not None
    assert is_explained == ("key" in sentence and "new chain" not in sentence)

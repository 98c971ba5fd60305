"""``compile``: deferred pointwise stages as one function."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch

from tdx import (
    CatFrames,
    Compose,
    GymEnv,
    ObservationNorm,
    RewardClipping,
    RewardScaling,
    TransformedEnv,
)
from tests.core.planned.test_law import compared


def made(compiler: bool | str) -> TransformedEnv:
    chain = Compose(
        ObservationNorm(0.1, 2.0),
        RewardScaling(0.0, 0.1),
        RewardClipping(-1, 1),
        CatFrames(2, -1, in_keys=["observation"]),
        ObservationNorm(0.5, 0.5, out_keys=["halved"]),
    )
    env = TransformedEnv(GymEnv("CartPole-v1"), chain, compile=compiler)
    env.set_seed(0)
    return env


@pytest.mark.parametrize("stop", [True, False])
def test_values_agree(stop: bool) -> None:
    results = []
    for compiler in (False, "aot_eager"):
        env = made(compiler)
        torch.manual_seed(0)
        results.append(env.rollout(60, break_when_any_done=stop))
    compared(results[1], results[0], rtol=1e-6)


def test_copies_are_compiled_separately() -> None:
    env = made("aot_eager")
    env.rollout(5)
    for copied in (copy.deepcopy(env), pickle.loads(pickle.dumps(env))):
        assert copied.compiler == "aot_eager"
        assert copied.rollout(5)["next", "halved"].shape[-1] == 8

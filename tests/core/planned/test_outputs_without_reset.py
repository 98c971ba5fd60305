"""Outputs that only steps write: zero in the rows of a reset, planned and eager alike."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tensordict import TensorDict, TensorDictBase
from tensordict.nn import TensorDictModule

from tdx import (
    Bounded,
    Compose,
    Composite,
    EnvBase,
    ObservationNorm,
    RewardSum,
    StepCounter,
    TransformedEnv,
    Unbounded,
)
from tests.core.planned.test_law import compared
from tests.core.planned.test_policies import is_planned

ROWS = 3


class Forgets(EnvBase):
    """Env whose resets write ``observation``, but neither ``pace`` nor that of a group.

    Row ``i`` ends after ``i + 2`` steps.
    """

    step_reads = ()

    def __init__(self) -> None:
        super().__init__(batch_size=[ROWS])
        leaf = Unbounded((ROWS, 1))
        group = Composite(pace=leaf.clone(), shape=[ROWS])
        self.observation_spec = Composite(
            observation=leaf, pace=leaf.clone(), group=group, shape=[ROWS]
        )
        self.action_spec = Bounded(-1.0, 1.0, (ROWS, 1))
        self.count = torch.zeros(ROWS, 1)
        self.stops = torch.arange(2.0, 2.0 + ROWS).unsqueeze(-1)

    def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
        mask = None if tensordict is None else tensordict.get("_reset", None)
        self.count = self.count.masked_fill(torch.tensor(True) if mask is None else mask, 0.0)
        return TensorDict(observation=self.count.clone(), batch_size=[ROWS])

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        self.count = self.count + 1
        return TensorDict(
            observation=self.count.clone(),
            pace=self.count + 9,
            group=TensorDict(pace=self.count + 19, batch_size=[ROWS]),
            reward=self.count + tensordict["action"],
            terminated=self.count >= self.stops,
            batch_size=[ROWS],
        )

    def _set_seed(self, seed: int | None) -> None:
        return None


def mean_policy() -> TensorDictModule:
    return TensorDictModule(
        lambda seen, pace: (seen + pace) / 99, ["observation", "pace"], ["action"]
    )


@pytest.mark.parametrize("chunk", [None, 3])
@pytest.mark.parametrize("policy", [None, mean_policy])
@pytest.mark.parametrize(
    "stages",
    [list, lambda: [ObservationNorm(0.5, 2.0, ["pace"]), RewardSum(), StepCounter(4)]],
    ids=["none", "some"],
)
def test_rows_of_a_reset_hold_nothing_of_the_old_episode(
    stages: Callable[[], list[Any]], policy: Callable[[], Any] | None, chunk: int | None
) -> None:
    rollouts = []
    for planned in (True, False):
        env = TransformedEnv(Forgets(), Compose(*stages()), planned=planned)
        acts = None if policy is None else policy()
        torch.manual_seed(0)
        start = env.step_mdp(env.rand_step(env.reset()))
        given: Any = {"tensordict": start, "auto_reset": False, "break_when_any_done": False}
        if chunk is None:
            rollouts.append(env.rollout(12, acts, **given))
        else:
            rollouts.append(
                torch.cat(list(env.iter_rollout(12, acts, chunk_steps=chunk, **given)), -1)
            )
    compared(*rollouts)
    ended = rollouts[0]["next", "done"].squeeze(-1)[:, :-1]
    assert ended.sum() > ROWS
    for key in ("pace", ("group", "pace")):
        after = rollouts[0][key][:, 1:]
        assert not after[ended].any()
        assert after[~ended].all()


def test_the_env_can_be_planned() -> None:
    env = TransformedEnv(Forgets(), StepCounter())
    assert is_planned(env, None)

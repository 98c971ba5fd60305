"""Rollouts of envs with done flags at the root, of agents, and both, in both libraries."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from tensordict import TensorDict, TensorDictBase

import tdx
from tests.parity.twins import ORACLE, assert_same_values

ENDS = {
    "root": ("root",),
    "agents": ("agents",),
    "both": ("root", "agents"),
}
"""Where an env has done flags."""
LENGTHS = {
    "agents first": ((2, 3), 4),
    "root first": ((5, 6), 3),
    "together": ((3, 3), 3),
    "one with the root": ((2, 4), 4),
}
"""Steps until each of two agents is done, and until the root is."""


def team_class(m: Any) -> type[Any]:
    """Return an env of two agents that count their steps, as a class of one of the libraries."""

    class Team(m.EnvBase):  # type: ignore[misc]
        def __init__(
            self, places: tuple[str, ...], lengths: tuple[tuple[int, ...], int], late: int
        ) -> None:
            super().__init__(batch_size=())
            self.places = places
            agents, whole = lengths
            self.ends = torch.tensor(agents).unsqueeze(-1) + late
            self.end = whole + late
            self.counts, self.count = torch.zeros(2, 1), torch.zeros(1)
            count = m.Composite(count=m.Unbounded((2, 1)), shape=(2,))
            self.observation_spec = m.Composite(agents=count, total=m.Unbounded((1,)))
            action = m.Composite(action=m.Unbounded((2, 1)), shape=(2,))
            self.action_spec = m.Composite(agents=action)
            reward = m.Composite(reward=m.Unbounded((2, 1)), shape=(2,))
            self.reward_spec = m.Composite(agents=reward)
            flags = {}
            if "agents" in places:
                names = ("done", "terminated", "truncated")
                nested = {name: m.Categorical(2, (2, 1), dtype=torch.bool) for name in names}
                flags["agents"] = m.Composite(nested, shape=(2,))
            if "root" in places:
                for name in ("done", "terminated", "truncated"):
                    flags[name] = m.Categorical(2, (1,), dtype=torch.bool)
            self.done_spec = m.Composite(flags)

        def _observed(self) -> TensorDict:
            agents = TensorDict(count=self.counts.clone(), batch_size=[2])
            return TensorDict(agents=agents, total=self.count.clone())

        def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDict:
            given = TensorDict() if tensordict is None else tensordict
            root, nested = given.get("_reset", None), given.get(("agents", "_reset"), None)
            rows = nested if root is None else root.expand(2, 1)
            rows = torch.ones(2, 1, dtype=torch.bool) if rows is None else rows
            self.counts = self.counts.masked_fill(rows, 0)
            self.count = self.count * (~rows.any())
            return self._observed()

        def _step(self, tensordict: TensorDictBase) -> TensorDict:
            self.counts, self.count = self.counts + 1, self.count + 1
            result = self._observed()
            result["agents", "reward"] = self.counts * 10
            if "agents" in self.places:
                result["agents", "terminated"] = self.counts == self.ends
                result["agents", "truncated"] = torch.zeros(2, 1, dtype=torch.bool)
                result["agents", "done"] = self.counts == self.ends
            if "root" in self.places:
                result["terminated"] = self.count >= self.end
                result["truncated"] = torch.zeros(1, dtype=torch.bool)
                result["done"] = self.count >= self.end
            return result

        def _set_seed(self, seed: int | None) -> None:
            return None

    return Team


def team(m: Any, places: str, lengths: str, stages: list[Any], **kwargs: Any) -> Any:
    """Return two envs, of which the second has longer episodes, with a chain around them."""
    kind: Any = team_class(m)
    makers = [partial(kind, ENDS[places], LENGTHS[lengths], late) for late in (0, 1)]
    return m.TransformedEnv(m.SerialEnv(2, makers), m.Compose(*stages), **kwargs)


def chain(m: Any, places: str) -> list[Any]:
    stages = [m.StepCounter(), m.RewardSum(), m.InitTracker()]
    if places != "agents":  # There CatFrames of the oracle fails at a reset of one agent.
        keys = {
            "in_keys": [("agents", "count"), "total"],
            "out_keys": [("agents", "frames"), "frames"],
        }
        # The oracle wants the mask by name if there are two.
        named = m is ORACLE and places == "both"
        options = {"reset_key": "_reset", "done_key": "done"} if named else {}
        stages.append(m.CatFrames(2, -1, **keys, **options))
    return stages


def zero_actions(env: Any) -> Any:
    return lambda tensordict: tensordict.update(env.full_action_spec.zero())


@pytest.mark.parametrize("planned", [True, False])
@pytest.mark.parametrize("stop", [True, False])
@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize("places", ENDS)
def test_agents_and_root_end_as_in_the_oracle(
    places: str, lengths: str, stop: bool, planned: bool
) -> None:
    theirs = team(ORACLE, places, lengths, chain(ORACLE, places))
    ours = team(tdx, places, lengths, chain(tdx, places), planned=planned)
    wanted = theirs.rollout(14, zero_actions(theirs), break_when_any_done=stop)
    result = ours.rollout(14, zero_actions(ours), break_when_any_done=stop)
    if places == "agents":  # The oracle leaves entries of the root as they are if an agent ends.
        wanted = wanted.exclude("total")
    assert_same_values(result.select(*wanted.keys(True, True)), wanted)


@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize("places", ENDS)
def test_converted_envs_reset_as_the_original(places: str, lengths: str) -> None:
    theirs = team(ORACLE, places, lengths, [])
    wanted = theirs.rollout(14, zero_actions(theirs), break_when_any_done=False)
    outward = tdx.to_torchrl(team(tdx, places, lengths, []))
    result = outward.rollout(14, zero_actions(outward), break_when_any_done=False)
    assert_same_values(result.select(*wanted.keys(True, True)), wanted)
    inward = tdx.from_torchrl(theirs)
    result = inward.rollout(14, zero_actions(inward), break_when_any_done=False)
    if places == "agents":
        wanted = wanted.exclude("total")
    assert_same_values(result.select(*wanted.keys(True, True)), wanted)

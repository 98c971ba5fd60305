"""Connectors of RLlib: values of the loop of its env runner, contracts, one pipeline alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch

import tdx
from tdx.foundation.errors import ArgumentError
from tdx.stacks import open_stack
from tests.programs import require_package

pytestmark = [pytest.mark.programs, pytest.mark.filterwarnings("ignore")]

NUM_ENVS = 2
STEPS = 30
"""Enough for the end of an episode with random actions."""
Make = Callable[..., Any]


@pytest.fixture(scope="module")
def rllib() -> Any:
    """The env-to-module connectors, and one that reads earlier observations of an episode."""
    require_package("tree")
    from ray.rllib.connectors import env_to_module

    return env_to_module


@pytest.fixture(scope="module")
def history_mean(rllib: Any) -> Any:
    """Return a connector that puts the mean of up to three observations into the batch."""
    from ray.rllib.connectors.connector_v2 import ConnectorV2

    def mean(self: Any, *, batch: Any, episodes: Any, **_: Any) -> Any:
        for episode in self.single_agent_episode_iterator(episodes):
            latest = episode.get_observations(slice(-3, None), fill=0.0)
            value = np.mean(latest, 0, dtype=np.float32)
            self.add_batch_item(batch, "obs", value, episode)
        return batch

    return type("HistoryMean", (ConnectorV2,), {"__call__": mean, "__abstractmethods__": ()})


@pytest.fixture(scope="module")
def make(rllib: Any) -> Make:
    """Return a function that creates an env runner with some connectors."""
    from ray.rllib.algorithms import ppo
    from ray.rllib.env.single_agent_env_runner import SingleAgentEnvRunner

    # Its functions are only partly annotated.
    algorithm: Any = ppo

    def create(*pieces: Callable[[], Any], env: str = "CartPole-v1") -> Any:
        config = algorithm.PPOConfig().environment(env)
        config.env_runners(
            num_env_runners=0,
            num_envs_per_env_runner=NUM_ENVS,
            env_to_module_connector=lambda *_: [piece() for piece in pieces],
        )
        return SingleAgentEnvRunner(config=config)

    return create


def run_by_rllib(runner: Any, actions: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """Return what the module of a runner receives, and its env, if the module returns actions."""
    received: list[Any] = []
    sent: list[Any] = []
    reset, step = runner.env.reset, runner.env.step

    def forward(batch: Any, **_: Any) -> Any:
        received.append(batch["obs"].numpy().copy())
        return {"actions": torch.as_tensor(actions[len(received) - 1])}

    def stepped(action: Any) -> Any:
        sent.append(np.array(action))
        return step(action)

    runner.module.forward_exploration = forward
    runner.env.reset, runner.env.step = lambda **_: reset(seed=3), stepped
    runner.sample(num_timesteps=NUM_ENVS * STEPS, explore=True)
    return received, sent


@pytest.mark.parametrize("case", ["normalized", "written", "augmented", "read before written"])
def test_values_are_those_of_the_loop_of_rllib(
    case: str, rllib: Any, history_mean: Any, make: Make
) -> None:
    pieces = {
        "normalized": (rllib.MeanStdFilter,),
        "written": (history_mean, rllib.WriteObservationsToEpisodes),
        "augmented": (
            rllib.MeanStdFilter,
            rllib.PrevActionsPrevRewards,
            rllib.FlattenObservations,
        ),
        # The filter changes the history that the first one reads in the next step.
        "read before written": (history_mean, rllib.MeanStdFilter),
    }[case]
    rng = np.random.default_rng(0)
    actions = [rng.integers(0, 2, NUM_ENVS) for _ in range(2 * STEPS)]
    received, sent = run_by_rllib(make(*pieces), actions)
    runner = make(*pieces)
    stack: Any = open_stack(runner)
    values = [stack.target.reset(seed=3)[0]["obs"]]
    values += [
        stack.target.step({"actions": action})[0]["obs"] for action in actions[: len(received) - 1]
    ]
    assert len(values) > STEPS
    assert all(map(np.array_equal, values, received))
    assert np.array_equal(sent[:-1], actions[: len(sent) - 1])


def test_actions_are_scaled_as_rllib_scales_them(rllib: Any, make: Make) -> None:
    trace = tdx.trace(make(env="Pendulum-v1")).run(1).last
    assert trace is not None
    (scaled,) = [stage for stage in trace.stages if "actions_for_env" in stage.written]
    assert scaled.name == "NormalizeAndClipActions"
    action = trace.version("actions@0", "inverse").value
    sent = run_by_rllib(make(env="Pendulum-v1"), [action] * (STEPS + 1))[1]
    assert np.array_equal(scaled.written["actions_for_env"].value, sent[0])


def test_stages_are_the_connectors_of_both_directions(rllib: Any, make: Make) -> None:
    stack = open_stack(make(rllib.MeanStdFilter))
    lanes = {stage.name: stage.direction for stage in stack.stages}
    assert list(lanes)[:2] == ["MeanStdFilter", "AddObservationsFromEpisodesToBatch"]
    assert lanes["NumpyToTensor"] == "forward"
    assert lanes["NormalizeAndClipActions"] == "inverse"
    # The first connector gets what the module returned.
    assert list(lanes)[-1] == "GetActions"
    assert "wrappers of the env" in stack.hidden[0]
    assert tdx.check(stack, seed=0, steps=STEPS).findings == ()
    evaluated = tdx.check(stack, seed=0, evaluation=True)
    hints = {finding.code: finding.hint for finding in evaluated.findings}
    assert hints == {"TDX404": "stop the updates: update_stats = False"}
    with stack.paused_learning():
        before = stack.state()[0]["_filters.mean"]
        tdx.inspect(stack, steps=2)
        assert torch.equal(before, stack.state()[0]["_filters.mean"])


def test_contract_is_kept_by_itself_and_not_by_other_connectors(rllib: Any, make: Make) -> None:
    contract = tdx.freeze(make(rllib.MeanStdFilter), steps=STEPS)
    report = tdx.check_contract(make(rllib.MeanStdFilter), contract)
    assert report.verdict == "same"
    assert not report.excluded
    assert report.coverage.stages == report.coverage.all_stages
    for pieces in ((lambda: rllib.MeanStdFilter(clip_by_value=0.5),), ()):
        report = tdx.check_contract(make(*pieces), contract)
        assert report.verdict == "different"
        assert report.differences[0].name == "MeanStdFilter"


def test_one_pipeline_gets_drawn_values(rllib: Any, make: Make) -> None:
    runner = make(rllib.MeanStdFilter, env="Pendulum-v1")
    for pipeline in (runner._env_to_module, runner._module_to_env):
        stack = open_stack(pipeline)
        assert not stack.hidden
        assert len(stack.stages) == len(pipeline.connectors)
        assert tdx.check_contract(pipeline, tdx.freeze(stack, steps=5)).verdict == "same"


def test_connector_that_cannot_be_called_is_named(rllib: Any, make: Make) -> None:
    with pytest.raises(ArgumentError, match="WriteObservationsToEpisodes cannot be called"):
        open_stack(make(rllib.WriteObservationsToEpisodes))


def test_env_of_several_agents_is_refused_with_the_next_step(rllib: Any) -> None:
    from ray.rllib.env.multi_agent_env import MultiAgentEnv

    env: Any = type("Tag", (MultiAgentEnv,), {})()
    with pytest.raises(ArgumentError, match="Tag is not supported") as caught:
        open_stack(env)
    assert "pass the PettingZoo parallel env" in str(caught.value.hint)

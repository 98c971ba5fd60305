"""Parallel envs of PettingZoo with wrappers: entries by agent, values, contracts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from gymnasium import spaces

import tdx
from tdx.core import StepTrace
from tdx.foundation.errors import ArgumentError
from tdx.inspection.live.session import LiveSession
from tdx.inspection.live.stack_env import StackEnv
from tdx.inspection.pipeline_report import summarize_rollout
from tdx.inspection.stack_import import import_stack
from tdx.stacks import open_stack
from tests.programs import require_package

pytestmark = pytest.mark.programs

AGENTS = ("runner", "hunter")


@pytest.fixture(scope="module")
def make() -> Callable[..., Any]:
    """Return a function that creates a wrapped env of two agents; the runner leaves first."""
    require_package("pettingzoo")
    from pettingzoo import ParallelEnv
    from pettingzoo.utils import BaseParallelWrapper

    class Tag(ParallelEnv):  # type: ignore[misc,unused-ignore]
        metadata: ClassVar[dict[str, Any]] = {"name": "tag_v0"}
        render_mode = None

        def __init__(self, *, mixed: bool) -> None:
            self.possible_agents = list(AGENTS)
            self.mixed = mixed
            self.generator = np.random.default_rng(0)

        def observation_space(self, agent: str) -> Any:
            size = 3 if self.mixed and agent == "hunter" else 2
            return spaces.Box(-10, 10, (size,), np.float32)

        def action_space(self, agent: str) -> Any:
            return spaces.Discrete(3)

        def _observe(self) -> dict[str, Any]:
            sizes = {agent: self.observation_space(agent).shape for agent in self.agents}
            return {
                agent: self.generator.uniform(-1, 1, size).astype(np.float32)
                for agent, size in sizes.items()
            }

        def reset(self, seed: Any = None, options: Any = None) -> Any:
            if seed is not None:
                self.generator = np.random.default_rng(seed)
            self.count = 0
            self.agents = list(AGENTS)
            return self._observe(), {agent: {} for agent in self.agents}

        def step(self, actions: Any) -> Any:
            assert set(actions) == set(self.agents)
            self.count += 1
            observed, acting = self._observe(), list(self.agents)
            terminated = {agent: agent == "runner" and self.count >= 5 for agent in acting}
            truncated = dict.fromkeys(acting, self.count >= 8)
            self.agents = [
                agent for agent in acting if not terminated[agent] and not truncated[agent]
            ]
            rewards = {agent: float(actions[agent]) for agent in acting}
            return observed, rewards, terminated, truncated, {agent: {} for agent in acting}

    class Scale(BaseParallelWrapper):  # type: ignore[misc,unused-ignore]
        def __init__(self, env: Any, factor: float) -> None:
            super().__init__(env)
            self.factor = factor

        def _scale(self, observations: dict[str, Any]) -> dict[str, Any]:
            return {agent: value * np.float32(self.factor) for agent, value in observations.items()}

        def reset(self, seed: Any = None, options: Any = None) -> Any:
            observations, infos = self.env.reset(seed=seed, options=options)
            return self._scale(observations), infos

        def step(self, actions: Any) -> Any:
            observations, *rest = self.env.step(actions)
            return (self._scale(observations), *rest)

    def create(factor: float = 0.5, *, mixed: bool = False) -> Any:
        return Scale(Tag(mixed=mixed), factor)

    return create


def test_agents_with_equal_spaces_share_an_entry(make: Callable[..., Any]) -> None:
    stack = open_stack(make())
    assert stack.name == "tag_v0"
    assert stack.calls == ("Scale(factor=0.5)",)
    specs = stack.specs()[-1]
    shapes = {key: spec.shape for key, spec in specs.output_spec.items(True, True)}
    assert shapes["full_observation_spec", "observation"] == torch.Size([2, 2])
    assert stack.notes == ("the rows [2] are the agents runner, hunter",)
    assert shapes["full_reward_spec", "reward"] == torch.Size([2])
    assert specs.input_spec["full_action_spec", "action"].shape == torch.Size([2])


def test_agents_with_different_spaces_have_an_entry_each(make: Callable[..., Any]) -> None:
    specs = open_stack(make(mixed=True)).specs()[-1].output_spec["full_observation_spec"]
    shapes = {agent: specs["observation", agent].shape for agent in AGENTS}
    assert shapes == {"runner": torch.Size([2]), "hunter": torch.Size([3])}


@pytest.mark.parametrize("mixed", [False, True])
def test_values_are_those_of_steps_by_hand(make: Callable[..., Any], mixed: bool) -> None:
    def roll(env: Any) -> list[Any]:
        results = [env.reset(seed=3)]
        while env.agents:
            results.append(env.step(dict.fromkeys(env.agents, 1)))
        return results

    plain, stack = make(mixed=mixed), open_stack(make(mixed=mixed))
    traces: list[StepTrace] = []
    with stack.attach(traces.append):
        observed = roll(stack.target)
    assert len(traces) == len(observed) == 9
    for trace, one, other in zip(traces, observed, roll(plain), strict=True):
        versions = trace.after(0)
        for row, agent in enumerate(AGENTS):
            if agent in one[0]:
                key = ("observation", agent) if mixed else "observation"
                value = versions[key].value if mixed else versions[key].value[row]
                assert np.array_equal(one[0][agent], other[0][agent])
                assert np.array_equal(value, one[0][agent])
    last = traces[-1].after(0)
    # The runner left three steps ago.
    assert last["reward"].value.tolist() == [0, 1]
    assert last["terminated"].value.tolist() == [True, False]
    assert last["truncated"].value.tolist() == [False, True]


@pytest.mark.parametrize("mixed", [False, True])
def test_contract_is_kept_by_itself_and_finds_another_factor(
    make: Callable[..., Any], mixed: bool
) -> None:
    assert tdx.check(make(mixed=mixed), seed=0, steps=30).findings == ()
    contract = tdx.freeze(make(mixed=mixed), steps=20)
    report = tdx.check_contract(make(mixed=mixed), contract)
    assert report.verdict == "same"
    assert report.coverage.stages == report.coverage.all_stages == 1
    assert not report.excluded
    assert tdx.check_contract(make(0.25, mixed=mixed), contract).verdict == "different"


def test_episode_goes_on_until_the_last_agent_has_left(make: Callable[..., Any]) -> None:
    report = summarize_rollout(open_stack(make()), 20, 0)
    assert [(each.steps, each.ended) for each in report.episodes] == [(8, "truncated")] * 3
    session = LiveSession(StackEnv(open_stack(make())))
    while sum(trace.phase == "step" for trace in session.history) < 9:
        session.advance()
    assert [(each.steps, each.end) for each in session.episodes()] == [(8, "truncated"), (1, "")]


def test_profile_and_state_name_the_wrapper(make: Callable[..., Any]) -> None:
    stack = open_stack(make())
    with tdx.profile(stack) as measured:
        stack.target.reset(seed=0)
        stack.target.step(dict.fromkeys(AGENTS, 0))
    labels = [row.part.label for row in measured.result.modes[0].rows]
    assert labels[-1] == "wrapper Scale"


def test_wrappers_of_supersuit_have_the_name_of_what_they_do(make: Callable[..., Any]) -> None:
    require_package("supersuit")
    import supersuit

    stack = open_stack(supersuit.frame_stack_v1(supersuit.pad_observations_v0(make(mixed=True)), 3))
    assert stack.stages[-1].call == "FrameStackModifier"
    assert any("AEC env" in sentence for sentence in stack.hidden) == (len(stack.stages) == 1)
    assert tdx.check_contract(stack, tdx.freeze(stack, steps=10)).verdict == "same"


def test_aec_env_is_refused_with_the_conversion(make: Callable[..., Any]) -> None:
    from pettingzoo.utils.conversions import parallel_to_aec

    with pytest.raises(ArgumentError) as error:
        open_stack(parallel_to_aec(make()))
    assert "aec_to_parallel" in str(error.value.hint)


def test_import_says_why_there_is_no_pipeline(make: Callable[..., Any]) -> None:
    with pytest.raises(ArgumentError, match="cannot name its env") as error:
        import_stack(lambda: open_stack(make()))
    assert "EnvBase" in str(error.value.hint)


def test_wrappers_around_an_aec_env_that_was_a_parallel_env_are_stages(
    make: Callable[..., Any],
) -> None:
    require_package("supersuit")
    import supersuit

    def wrapped(high: float) -> Any:
        stacked = supersuit.frame_stack_v1(make(), 2)
        return supersuit.clip_reward_v0(stacked, lower_bound=-1, upper_bound=high)

    stack = open_stack(wrapped(1))
    names = ["Scale", "FrameStackModifier", "aec_reward_lambda"]
    assert [stage.name for stage in stack.stages] == names
    assert not stack.hidden
    contract = tdx.freeze(wrapped(1), steps=6, compare=["observation", "reward"])
    assert tdx.check_contract(wrapped(1), contract).verdict == "same"
    assert tdx.check_contract(wrapped(0.5), contract).verdict == "different"


@pytest.mark.parametrize("base", ["gymnasium", "stable_baselines3"])
def test_vector_env_of_agents_is_refused_with_the_parallel_env(
    make: Callable[..., Any], base: str
) -> None:
    require_package("supersuit")
    import supersuit

    vector = supersuit.pettingzoo_env_to_vec_env_v1(supersuit.black_death_v3(make()))
    with pytest.raises(ArgumentError) as error:
        open_stack(vector)
    assert ".par_env" in str(error.value.hint)
    with pytest.raises(ArgumentError, match="ConcatVecEnv is not supported") as error:
        open_stack(supersuit.concat_vec_envs_v1(vector, 2, base_class=base))
    assert "pass the PettingZoo parallel env" in str(error.value.hint)

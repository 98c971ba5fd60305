"""The first step after which the state of a stage differs, or its random stream."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import wrappers

import tdx
from tdx.testing import assert_matches_contract
from tests.contracts import envs as made
from tests.programs import exhaustive


def normalizer(updates: int = 1) -> Any:
    """Return a normalizer that takes each observation several times from the third call on."""

    class NormalizeObservation(wrappers.NormalizeObservation[Any, Any, Any]):
        calls = 0

        def observation(self, observation: Any) -> Any:
            type(self).calls += 1
            if self.update_running_mean and type(self).calls >= 3:
                for _ in range(updates - 1):
                    self.obs_rms.update(np.array([observation]))
            return super().observation(observation)

        def reset(self, **kwargs: Any) -> Any:
            type(self).calls = 0
            return super().reset(**kwargs)

    return NormalizeObservation(made.pendulum())


def noisy(draws: int = 1) -> Any:
    """Return noise that draws more numbers than it uses from the third call on."""

    class Noise(gym.ObservationWrapper[Any, Any, Any]):
        calls = 0

        def observation(self, observation: Any) -> Any:
            type(self).calls += 1
            noise = np.random.normal(size=3)
            if type(self).calls >= 3:
                for _ in range(draws - 1):
                    noise = np.random.normal(size=3)
            return (observation + noise).astype(np.float32)

        def reset(self, **kwargs: Any) -> Any:
            type(self).calls = 0
            return super().reset(**kwargs)

    return Noise(made.pendulum())


@exhaustive
def test_statistics_that_are_updated_otherwise_are_found_with_the_first_step() -> None:
    frozen = tdx.freeze(normalizer())
    assert tdx.check_contract(normalizer(), frozen).same
    report = tdx.check_contract(normalizer(updates=2), frozen)
    (difference,) = report.differences
    assert difference.state is not None
    assert (difference.key, difference.step) == ("obs_rms.count", 1)
    # The reset and two steps, and one update more in the third call.
    assert difference.message == (
        "its state obs_rms.count differs from step 1 on: 4.0001 instead of 3.0001"
    )
    assert difference.to_dict()["state"] == {
        **{"name": "obs_rms.count", "is_random": False, "step": 1, "is_reset": False},
        **{"reference": pytest.approx(3.0001), "target": pytest.approx(4.0001)},
    }


@exhaustive
def test_a_history_has_the_step_at_which_its_queue_differs(tmp_path: Path) -> None:
    make = wrappers.FrameStackObservation
    frozen = tdx.freeze(make(made.pendulum(), 3))
    report = tdx.check_contract(make(made.pendulum(), 3, padding_type="zero"), frozen)
    assert report.first is not None
    assert report.first.state is not None
    assert report.first.state.text == "its state obs_queue differs from the first reset on"
    assert "its state obs_queue differs from the first reset on" in str(report._repr_html_())
    folder = tmp_path / "contract"
    tdx.save_contract(frozen, folder)
    with pytest.raises(
        AssertionError, match="state: its state obs_queue differs from the first reset on"
    ):
        assert_matches_contract(make(made.pendulum(), 3, padding_type="zero"), folder)


@exhaustive
def test_a_random_stage_has_the_step_at_which_its_stream_diverges() -> None:
    frozen = tdx.freeze(noisy())
    assert tdx.check_contract(noisy(), frozen).same
    report = tdx.check_contract(noisy(draws=2), frozen)
    assert report.first is not None
    assert report.first.state is not None
    assert report.first.state.text == "the random stream of NumPy differs from step 1 on"


def test_random_streams_are_the_same_in_another_process() -> None:
    """A process starts with a random state of NumPy, and a recording does not depend on it."""
    streams = []
    for start in (1, 2):
        np.random.seed(start)
        frozen = tdx.freeze(tdx.TransformedEnv(tdx.GymEnv("Pendulum-v1"), tdx.VecNorm()))
        assert frozen.states is not None
        streams.append(frozen.states.streams["NumPy"].tolist())
    assert streams[0] == streams[1]


@exhaustive
def test_state_that_follows_from_another_stage_is_not_charged_to_its_own() -> None:
    def make(factor: float) -> Any:
        env = wrappers.TransformObservation(
            made.pendulum(), lambda value: value * np.float32(factor), None
        )
        return wrappers.NormalizeObservation(env)

    frozen = tdx.freeze(make(1.0))
    report = tdx.check_contract(make(2.0), frozen)
    assert [difference.stage for difference in report.differences] == [
        report.rows[-2].b.index if report.rows[-2].b is not None else None
    ]
    assert all(difference.state is None for difference in report.follows)


@exhaustive
def test_an_evaluation_need_not_update_its_statistics() -> None:
    def make(learning: bool = True) -> Any:
        env = normalizer()
        env.update_running_mean = learning
        return env

    frozen = tdx.freeze(make())
    assert tdx.check_contract(make(learning=False), frozen, evaluation=True).same


@exhaustive
def test_a_contract_keeps_the_states_and_an_older_one_has_none(tmp_path: Path) -> None:
    frozen = tdx.freeze(normalizer())
    tdx.save_contract(frozen, tmp_path / "new")
    report = tdx.check_contract(normalizer(updates=2), tdx.load_contract(tmp_path / "new"))
    assert report.first is not None
    assert report.first.state is not None
    tdx.save_contract(replace(frozen, states=None), tmp_path / "old")
    old = tdx.load_contract(tmp_path / "old")
    assert old.states is None
    assert tdx.check_contract(normalizer(updates=2), old).same

"""Dumps of envs with Text, Sequence, Graph and OneOf entries, which are not stored."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from tdx.foundation.errors import ArgumentError
from tdx.pipeline import Pipeline
from tdx.pipeline.model import EnvConfig
from tdx.rollouts import open_dump, replay, verify
from tdx.rollouts.dump.entries import NotFiniteWarning, NotStoredWarning, list_skipped
from tdx.rollouts.recording.rollout import record_dump

BOX = spaces.Box(-1.0, 1.0, (2,), np.float32)
ODD: dict[str, spaces.Space[Any]] = {
    "Text": spaces.Text(4),
    "Sequence": spaces.Sequence(BOX),
    "Graph": spaces.Graph(BOX, None),
    "OneOf": spaces.OneOf([BOX, spaces.Discrete(2)]),
}


class OddSpaceEnv(gymnasium.Env[Any, Any]):
    """Env that observes a member of a space, alone or together with an array.

    Args:
        kind: One of :data:`ODD`.
        form: ``alone``, ``sibling`` of an array, or ``nested`` in another key.
        acts: True if actions are of this kind too.
    """

    def __init__(self, kind: str, form: str = "sibling", acts: bool = False) -> None:
        odd = ODD[kind]
        self.observation_space = {
            "alone": odd,
            "sibling": spaces.Dict(known=BOX, odd=odd),
            "nested": spaces.Dict(known=BOX, group=spaces.Dict(odd=odd)),
        }[form]
        self.action_space = odd if acts else spaces.Discrete(2)
        self.count = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.observation_space.seed(0 if seed is None else seed)
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> Any:
        self.count += 1
        return self.observation_space.sample(), 1.0, self.count % 3 == 0, False, {}


@pytest.fixture(autouse=True)
def registered(register_env: Callable[[str, Any], None]) -> None:
    register_env("OddSpace-v0", OddSpaceEnv)


def pipeline_of(*stages: str, num_envs: int | None = None, **kwargs: Any) -> Pipeline:
    stored = Pipeline.of("OddSpace-v0", *stages)
    config = EnvConfig("OddSpace-v0", kwargs, num_envs=num_envs)
    return Pipeline(config, stored.transforms)


@pytest.mark.parametrize("kind", ODD)
@pytest.mark.parametrize("form", ["alone", "sibling", "nested"])
@pytest.mark.parametrize("num_envs", [None, 2])
def test_tensor_entries_are_stored(
    kind: str, form: str, num_envs: int | None, tmp_path: Path
) -> None:
    pipeline = pipeline_of("RewardSum", num_envs=num_envs, kind=kind, form=form)
    with pytest.warns(NotStoredWarning, match="not stored, because values of") as warned:
        record_dump(pipeline, tmp_path / "dump", steps=7, chunk_steps=3, seed=0)
    key = {"alone": "observation", "sibling": "odd", "nested": "group.odd"}[form]
    assert f"{key!r} ({kind})" in str(warned[0].message)
    dump = open_dump(tmp_path / "dump")
    keys = set(dump.data["next"].keys(True, True))
    known = set() if form == "alone" else {"known"}
    assert keys == known | {"reward", "episode_reward", "done", "terminated", "truncated"}
    assert "action" in dump.data.keys()
    assert dump.manifest.complete
    assert verify(tmp_path / "dump").is_fine
    (skipped_kind,) = list_skipped(dump.manifest.specs).values()
    assert skipped_kind == kind


def test_action_that_is_not_a_tensor_is_not_stored(tmp_path: Path) -> None:
    with pytest.warns(NotStoredWarning, match=r"'odd' \(Text\), 'action' \(Text\)"):
        record_dump(pipeline_of(kind="Text", acts=True), tmp_path / "dump", steps=4, seed=0)
    data = open_dump(tmp_path / "dump").data
    assert "action" not in data.keys()
    assert data["next", "reward"].shape == (4, 1)


def test_raw_steps_can_be_replayed(tmp_path: Path) -> None:
    source = pipeline_of("RewardSum", kind="Text")
    with pytest.warns(NotStoredWarning):
        record_dump(source, tmp_path / "dump", steps=6, seed=0, raw=True)
    chain = pipeline_of("RewardScaling(0.0, 2.0)", kind="Text")
    replay(open_dump(tmp_path / "dump"), chain.transforms, tmp_path / "other")
    rewards = open_dump(tmp_path / "other").data["next", "reward"]
    assert rewards.flatten().tolist() == [2.0] * 6


def test_selected_keys_do_not_warn(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        record_dump(
            pipeline_of(kind="Text"), tmp_path / "dump", steps=3, seed=0, keys=("known", "reward")
        )
    with pytest.raises(ArgumentError, match=r"key 'odd': it cannot be stored: values of a Text"):
        record_dump(pipeline_of(kind="Text"), tmp_path / "other", steps=3, keys=("next.odd",))


class Spills(gymnasium.Env[Any, Any]):
    """Returns nan in its fourth and fifth step, and inf in its seventh."""

    observation_space = gymnasium.spaces.Box(-100, 100, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.count = 0
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> Any:
        self.count += 1
        odd = {4: np.nan, 5: np.nan, 7: np.inf}.get(self.count, 0.0)
        return np.array([self.count, odd], np.float32), 1.0, False, False, {}


@pytest.fixture
def spills(monkeypatch: pytest.MonkeyPatch) -> Pipeline:
    """Return a pipeline whose observations are not finite in some steps."""
    make: Any = Spills
    spec = gymnasium.envs.registration.EnvSpec("Spills-v0", entry_point=make)
    monkeypatch.setitem(gymnasium.registry, "Spills-v0", spec)
    return Pipeline.of("Spills-v0")


def test_nan_and_inf_are_said_once_while_recording(spills: Pipeline, tmp_path: Path) -> None:
    with pytest.warns(NotFiniteWarning) as warned:
        record_dump(spills, tmp_path / "dump", steps=20, chunk_steps=10, seed=0)
    (message,) = [str(each.message) for each in warned]
    assert "'next.observation' holds 2 nan and 1 inf, first at step 3" in message
    assert "'observation' holds 2 nan and 1 inf, first at step 4" in message
    assert "in steps 0 to 9" in message
    assert {problem.kind for problem in verify(tmp_path / "dump").problems} == {"spec"}


def test_each_entry_is_reported_in_the_chunk_in_which_it_is_first_not_finite(
    spills: Pipeline, tmp_path: Path
) -> None:
    with pytest.warns(NotFiniteWarning) as warned:
        record_dump(spills, tmp_path / "dump", steps=8, chunk_steps=4, seed=0)
    first, second = [str(each.message) for each in warned]
    assert "'next.observation' holds 1 nan, first at step 3 (in steps 0 to 3)" in first
    assert "'observation' holds 2 nan and 1 inf, first at step 4 (in steps 4 to 7)" in second


def test_finite_values_are_no_reason_to_warn(tmp_path: Path) -> None:
    record_dump(Pipeline.of("Pendulum-v1"), tmp_path / "dump", steps=8, seed=0)
    assert verify(tmp_path / "dump").is_fine

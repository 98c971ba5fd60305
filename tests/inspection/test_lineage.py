"""Data flow of a chain, and versions of its keys."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from tensordict import TensorDict, TensorDictBase

from tdx import (
    Bounded,
    CartPoleEnv,
    Compose,
    Composite,
    EnvBase,
    ObservationNorm,
    StepCounter,
    TransformedEnv,
    Unbounded,
)
from tdx.foundation.errors import KeyNotFoundError
from tdx.foundation.keys import NestedKey
from tdx.inspection.chain import ChainReport, KeyFlow, inspect_chain
from tdx.inspection.lineage import KeyVersion, Lineage, inspect_keys
from tdx.pipeline import EnvConfig, Pipeline, build_checked_env

CHAIN = (
    "StepCounter(max_steps=3)",
    "RewardSum",
    "ActionScaling",
    'RenameTransform(["observation"], ["angle"])',
    'ObservationNorm(0.0, 2.0, in_keys=["angle"])',
    'ExcludeTransform("reward")',
)


@pytest.fixture(scope="module")
def env() -> TransformedEnv:
    return build_checked_env(Pipeline.of("Pendulum-v1", *CHAIN))


@pytest.fixture
def chain(env: TransformedEnv) -> ChainReport:
    return inspect_chain(env, "Pendulum-v1")


@pytest.fixture
def lineage(env: TransformedEnv) -> Lineage:
    return inspect_keys(env)


def written(lane: KeyFlow) -> list[NestedKey]:
    return [write.key for write in lane.writes]


def version(lineage: Lineage, name: str) -> KeyVersion:
    (found,) = [each for each in lineage.versions if each.name == name]
    return found


def test_counter_with_a_limit_writes_done_flags(chain: ChainReport) -> None:
    counter = chain.stages[0]
    assert written(counter.forward) == ["step_count", "truncated", "done"]
    assert [write.new for write in counter.forward.writes] == [True, False, False]
    assert counter.carried == ("step_count",)


def test_counter_without_a_limit_writes_no_done_flags() -> None:
    counter = inspect_chain(TransformedEnv(CartPoleEnv(), StepCounter())).stages[0]
    assert written(counter.forward) == ["step_count"]


def test_compose_writes_the_keys_of_its_stages() -> None:
    env = build_checked_env(
        Pipeline.of("Pendulum-v1", f"Compose({', '.join(CHAIN[:2])}, InitTracker())")
    )
    (stage,) = inspect_chain(env).stages
    assert set(written(stage.forward)) == {
        *("step_count", "truncated", "done", "episode_reward", "is_init")
    }
    assert stage.carried == ("step_count", "episode_reward")


def test_flow_of_a_chain(chain: ChainReport) -> None:
    _, total, scaling, rename, norm, exclude = chain.stages
    assert (total.forward.reads, written(total.forward)) == (("reward",), ["episode_reward"])
    assert total.forward.writes[0].source == "reward"
    assert (scaling.inverse.reads, written(scaling.inverse)) == (("action",), ["action"])
    assert rename.forward.renames == (("observation", "angle"),)
    assert written(rename.forward) == []
    (scaled,) = norm.forward.writes
    assert scaled.before is not None
    assert scaled.after is not None
    assert (scaled.before.domain.high, scaled.after.domain.high) == ([1.0, 1.0, 8.0], [2, 2, 16])
    assert exclude.forward.drops == ("reward",)
    assert all(stage.inverse.is_empty for stage in chain.stages if stage is not scaling)


def test_action_bounds_flow_in_the_inverse_direction(chain: ChainReport) -> None:
    (write,) = chain.stages[2].inverse.writes
    assert write.before is not None
    assert write.after is not None
    assert (write.before.domain.high, write.after.domain.high) == (1.0, 2.0)


def test_versions_have_writers_and_readers(lineage: Lineage) -> None:
    facts = {
        each.name: (str(each.writer), list(map(str, each.readers))) for each in lineage.versions
    }
    assert facts["reward@0"] == ("env", ["1 RewardSum"])
    assert facts["done@0"] == ("env", ["0 StepCounter"])
    assert facts["done@1"] == ("0 StepCounter", ["output"])
    assert facts["terminated@0"] == ("env", ["output"])
    assert facts["angle@1"] == ("3 RenameTransform", ["4 ObservationNorm"])
    assert facts["angle@2"] == ("4 ObservationNorm", ["output"])
    assert facts["action@0"] == ("policy", ["2 ActionScaling"])
    assert facts["action@1"] == ("2 ActionScaling", ["env"])
    assert version(lineage, "angle@1").source == "observation@0"
    assert str(version(lineage, "observation@0").ended) == "3 RenameTransform"
    assert str(version(lineage, "reward@0").ended) == "5 ExcludeTransform"


def test_versions_have_the_spec_at_their_stage(lineage: Lineage) -> None:
    for name, high in (("action@0", 1.0), ("action@1", 2.0), ("angle@2", [2.0, 2.0, 16.0])):
        spec = version(lineage, name).spec
        assert spec is not None
        assert spec.domain.high == high


def test_counter_reads_its_count_in_the_next_step(lineage: Lineage) -> None:
    readers = version(lineage, "step_count@1").readers
    assert [(str(place), place.next_step) for place in readers] == [
        ("0 StepCounter", True),
        ("output", False),
    ]


class Moved(EnvBase):
    """Env without a state of its own: a step reads the position."""

    def __init__(self) -> None:
        super().__init__()
        self.observation_spec = Composite(position=Unbounded((1,)))
        self.state_spec = Composite(position=Unbounded((1,)))
        self.action_spec = Bounded(-1.0, 1.0, (1,))

    def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
        return TensorDict(position=torch.zeros(1))

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        position = tensordict["position"] + tensordict["action"]
        return TensorDict(position=position, reward=torch.zeros(1), done=torch.zeros(1).bool())

    def _set_seed(self, seed: int | None) -> None:
        return None


def test_env_reads_its_state_in_the_next_step_unless_a_stage_maps_it() -> None:
    def readers(env: EnvBase, lane: str) -> list[tuple[str, str, bool]]:
        return [
            (each.name, str(place), place.next_step)
            for each in inspect_keys(env).versions
            for place in each.readers
            if each.key == "position" and each.lane == lane
        ]

    expected = [("position@0", "env", True), ("position@0", "output", False)]
    assert readers(TransformedEnv(Moved(), Compose()), "forward") == expected
    position = ["position"]
    env = TransformedEnv(Moved(), ObservationNorm(0.0, 2.0, position, position, position, position))
    assert readers(env, "forward") == [
        ("position@0", "0 ObservationNorm", False),
        ("position@1", "output", False),
    ]
    assert readers(env, "inverse")[-1] == ("position@1", "env", False)


def test_selection_of_keys(lineage: Lineage) -> None:
    assert lineage.only(["done", "angle"]).keys() == ["done", "angle"]
    assert lineage.only([]) == lineage
    with pytest.raises(KeyNotFoundError, match="did you mean angle"):
        lineage.only(["angel"])


def test_casts_and_frame_skips() -> None:
    env = build_checked_env(
        Pipeline.of(
            EnvConfig("Pendulum-v1", num_envs=2),
            "DTypeCastTransform(torch.float32, torch.float64)",
            "FrameSkipTransform(2)",
        )
    )
    cast, skip = inspect_chain(env).stages
    assert set(written(cast.forward)) >= {"observation", "reward"}
    assert {write.after.dtype for write in cast.forward.writes if write.after} == {"float64"}
    assert set(written(skip.forward)) == {*env.observation_keys, *env.reward_keys, *env.done_keys}


def test_reports_are_json_serializable(chain: ChainReport, lineage: Lineage) -> None:
    for data in (chain.to_dict(), lineage.to_dict()):
        assert json.loads(json.dumps(data, allow_nan=False)) == data


@pytest.mark.parametrize("stage", [*CHAIN[:4], CHAIN[-1]])
def test_unwritten_keys_keep_their_values(stage: str) -> None:
    """What a report calls untouched is untouched when the env is stepped."""
    bare, env = (build_checked_env(Pipeline.of("Pendulum-v1", *part)) for part in ([], [stage]))
    lane = inspect_chain(env).stages[0].forward
    touched = {*written(lane), *lane.drops, *(key for pair in lane.renames for key in pair)}
    results = []
    for each in (bare, env):
        each.set_seed(0)
        results.append(each.step(each.reset().set("action", torch.full((1,), 0.5)))["next"])
    before, after = results
    scaled = stage == "ActionScaling"
    for key in {*before.keys(), *after.keys()} - touched:
        assert scaled or torch.equal(before[key], after[key]), key

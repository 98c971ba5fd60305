"""Entries of ``info`` in the TensorDict."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv

from tdx import Composite, NonTensor, Unbounded
from tdx.envs.gym import GymEnv, GymWrapper, default_info_dict_reader
from tdx.foundation.errors import ArgumentError, SpecError
from tests.envs.gym.mocks import CountEnv, InfoEnv

KEYS = {"score", "lives", "alive", "position", ("nested", "speed"), "name"}


def vector_of(kind: type[Any] = SyncVectorEnv, mode: Any = AutoresetMode.DISABLED) -> GymWrapper:
    return GymWrapper(kind([InfoEnv] * 2, autoreset_mode=mode))


def test_all_entries_are_read_with_their_types() -> None:
    env = GymWrapper(InfoEnv()).auto_register_info_dict()
    spec = env.observation_spec
    assert set(spec.keys(True, True)) == {"observation", *KEYS}
    forms = {key: (tuple(spec[key].shape), spec[key].dtype) for key in KEYS - {"name"}}
    assert forms == {
        "score": ((), torch.float64),
        "lives": ((), torch.int64),
        "alive": ((), torch.bool),
        "position": ((3,), torch.float32),
        ("nested", "speed"): ((), torch.float64),
    }
    assert isinstance(spec["name"], NonTensor)


def test_values_of_each_step_and_zeros_for_missing_entries() -> None:
    env = GymWrapper(InfoEnv()).auto_register_info_dict()
    rollout = env.rollout(3)
    assert rollout["score"].tolist() == [0.5, 1.5, 2.5]
    assert rollout["next", "score"].tolist() == [1.5, 2.5, 3.5]
    assert rollout["lives"].tolist() == [0, 1, 2]
    assert rollout["next", "position"].tolist() == [[1.0] * 3, [2.0] * 3, [3.0] * 3]
    assert rollout["next", "nested", "speed"].tolist() == [1, 2, 3]
    assert rollout[1]["next", "name"] == "step 2"


@pytest.mark.parametrize("kind", [SyncVectorEnv, AsyncVectorEnv])
def test_infos_of_a_vector_env(kind: type[Any]) -> None:
    with vector_of(kind).auto_register_info_dict() as env:
        assert set(env.observation_spec.keys(True, True)) == {"observation", *KEYS}
        assert env.observation_spec["position"].shape == torch.Size([2, 3])
        rollout = env.rollout(3)
    assert rollout["next", "lives"].tolist() == [[1, 2, 3]] * 2
    assert rollout["lives"].tolist() == [[0, 1, 2]] * 2
    assert rollout["next", "position"].shape == torch.Size([2, 3, 3])
    assert rollout[0, 1]["next", "name"] == "step 2"


@pytest.mark.parametrize("mode", list(AutoresetMode), ids=lambda mode: mode.name.lower())
def test_the_last_info_of_an_episode_is_in_next(mode: AutoresetMode) -> None:
    makers = [lambda: CountEnv((2,)), lambda: CountEnv((3,))]
    env = GymWrapper(SyncVectorEnv(makers, autoreset_mode=mode)).auto_register_info_dict()
    rollout = env.rollout(4, break_when_any_done=False)
    assert rollout["next", "count"].tolist() == [[1, 2, 1, 2], [1, 2, 3, 1]]
    assert rollout["count"].tolist() == [[0, 1, 0, 1], [0, 1, 2, 0]]
    phases = [[rollout[row, step]["next", "phase"] for step in range(4)] for row in range(2)]
    assert phases == [["middle", "end"] * 2, ["middle", "middle", "end", "middle"]]
    phases = [[rollout[row, step]["phase"] for step in range(4)] for row in range(2)]
    assert phases == [["start", "middle"] * 2, ["start", "middle", "middle", "start"]]


def test_some_keys() -> None:
    env = GymWrapper(InfoEnv()).set_info_dict_reader(
        default_info_dict_reader(["lives", ("nested", "speed")])
    )
    assert set(env.observation_spec.keys(True, True)) == {
        "observation",
        "lives",
        ("nested", "speed"),
    }


@pytest.mark.parametrize(
    "spec",
    [
        [Unbounded((), dtype=torch.float32)],
        {"score": Unbounded((), dtype=torch.float32)},
        Composite(score=Unbounded((), dtype=torch.float32)),
    ],
    ids=["list", "dict", "composite"],
)
def test_a_given_spec_decides_on_the_dtype(spec: Any) -> None:
    env = GymWrapper(InfoEnv()).set_info_dict_reader(default_info_dict_reader(["score"], spec))
    step = env.rand_step(env.reset())
    assert step["next", "score"].dtype == torch.float32
    assert step["next", "score"].item() == 1.5


def test_private_entries_on_request() -> None:
    env = GymWrapper(InfoEnv()).auto_register_info_dict(ignore_private=False)
    assert env.reset()["_private"].item() == 1


def test_a_function_as_reader() -> None:
    def read(info: Any, tensordict: Any) -> None:
        tensordict["doubled"] = torch.tensor(2 * info["score"])

    env = GymWrapper(InfoEnv()).set_info_dict_reader(read)
    assert env.reset()["doubled"].item() == 1.0


def test_inferring_the_specs_does_not_change_the_seed() -> None:
    env = GymEnv("FrozenLake-v1", seed=4)
    state = torch.random.get_rng_state()
    env.auto_register_info_dict()
    assert torch.equal(torch.random.get_rng_state(), state)
    env.reset()
    plain = GymEnv("FrozenLake-v1", seed=4)
    plain.reset()
    assert env.np_random.bit_generator.state == plain.np_random.bit_generator.state


def test_an_unknown_key() -> None:
    with pytest.raises(ArgumentError) as caught:
        GymWrapper(InfoEnv()).set_info_dict_reader(default_info_dict_reader(["scores"]))
    assert str(caught.value) == (
        "a reset and a few steps have no info entry 'scores' (entries found: alive, lives, name, "
        "nested, position, score; pass its spec if it appears later)"
    )


def test_info_key_of_an_observation_is_rejected() -> None:
    reader = default_info_dict_reader(["observation"], [Unbounded(())])
    with pytest.raises(SpecError, match="the info entry 'observation' has the same key as an obs"):
        GymWrapper(InfoEnv()).set_info_dict_reader(reader)


def test_specs_that_do_not_match_the_keys() -> None:
    with pytest.raises(ArgumentError, match="1 specs for 2 keys"):
        default_info_dict_reader(["a", "b"], [Unbounded(())])

"""All spaces of Gymnasium, as observations and actions, nested and batched."""

from __future__ import annotations

import re
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

from tdx import Composite, NonTensor
from tdx.envs.gym import GymWrapper
from tdx.envs.gym.numeric_spaces import CodecOptions
from tdx.envs.gym.spaces import codec_of
from tests.envs.gym.mocks import BOX, SpaceEnv


class Words(spaces.Space[str]):
    """Space of strings that a package defines, like the missions of MiniGrid."""

    def __init__(self) -> None:
        super().__init__(dtype=str)

    def sample(self, mask: Any = None, probability: Any = None) -> str:
        return str(self.np_random.choice(["go left", "go right"]))

    def contains(self, x: Any) -> bool:
        return bool(re.match("go ", str(x)))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Words)

    __hash__ = None  # type: ignore[assignment]


NUMBERS: dict[str, spaces.Space[Any]] = {
    "box": BOX,
    "box_scalar": spaces.Box(-1.0, 1.0, (), np.float32),
    "box_float64": spaces.Box(-np.inf, np.inf, (3,), np.float64),
    "box_float16": spaces.Box(-1.0, 1.0, (2,), np.float16),
    "box_half_open": spaces.Box(0.0, np.inf, (2,), np.float32),
    "box_uint8": spaces.Box(0, 255, (4, 5), np.uint8),
    "box_uint16": spaces.Box(0, 65535, (2,), np.uint16),
    "box_int64": spaces.Box(-3, 5, (2, 2), np.int64),
    "box_bool": spaces.Box(0, 1, (3,), np.bool_),
    "discrete": spaces.Discrete(4),
    "discrete_start": spaces.Discrete(4, start=-2),
    "discrete_many": spaces.Discrete(40, start=5),
    "multi_discrete": spaces.MultiDiscrete([2, 3, 4]),
    "multi_discrete_same": spaces.MultiDiscrete([3, 3]),
    "multi_discrete_one": spaces.MultiDiscrete([5]),
    "multi_discrete_start": spaces.MultiDiscrete([2, 3], start=[4, -1]),
    "multi_discrete_2d": spaces.MultiDiscrete(np.array([[2, 3], [4, 5]])),
    "multi_discrete_2d_same": spaces.MultiDiscrete(
        np.array([[2, 2], [2, 2]]), start=np.array([[1, 2], [3, 4]])
    ),
    "multi_binary": spaces.MultiBinary(3),
    "multi_binary_2d": spaces.MultiBinary([2, 3]),
}
OBJECTS: dict[str, spaces.Space[Any]] = {
    "text": spaces.Text(6),
    "sequence": spaces.Sequence(BOX),
    "sequence_stacked": spaces.Sequence(BOX, stack=True),
    "graph": spaces.Graph(BOX, spaces.Discrete(3)),
    "one_of": spaces.OneOf((BOX, spaces.Discrete(3))),
    "own": Words(),
}
NESTED: dict[str, spaces.Space[Any]] = {
    "dict": spaces.Dict(a=BOX, b=spaces.Discrete(3, start=1)),
    "dict_of_dict": spaces.Dict(a=spaces.Dict(b=spaces.Dict(c=BOX), d=spaces.MultiBinary(2))),
    "dict_of_tuple": spaces.Dict(a=spaces.Tuple((BOX, spaces.Discrete(3)))),
    "dict_of_text": spaces.Dict(image=spaces.Box(0, 255, (2, 2, 3), np.uint8), mission=Words()),
    "tuple_alike": spaces.Tuple((BOX, BOX)),
    "tuple_starts": spaces.Tuple((spaces.Discrete(3, start=1), spaces.Discrete(3, start=7))),
    "tuple_unlike": spaces.Tuple((BOX, spaces.Discrete(3, start=2), spaces.Text(3))),
    "tuple_of_dict": spaces.Tuple((spaces.Dict(a=BOX), spaces.Dict(a=BOX))),
    "tuple_of_tuple": spaces.Tuple((spaces.Tuple((BOX, BOX)), spaces.Tuple((BOX, BOX)))),
    "tuple_of_unlike": spaces.Tuple((spaces.Tuple((BOX, spaces.Text(2))), spaces.MultiBinary(2))),
    "tuple_of_text": spaces.Tuple((spaces.Text(2), spaces.Text(2))),
    "dict_of_sequence": spaces.Dict(
        a=spaces.Sequence(spaces.Discrete(3)), b=spaces.Graph(BOX, None)
    ),
}
SPACES = {**NUMBERS, **OBJECTS, **NESTED}

both_encodings = pytest.mark.parametrize("categorical", [False, True], ids=["one_hot", "index"])
single_and_vector = pytest.mark.parametrize(
    ("rows", "categorical"), [(0, True), (2, False)], ids=["single-index", "vector-one_hot"]
)
each_space = pytest.mark.parametrize("space", SPACES.values(), ids=SPACES.keys())


def wrap(observed: Any, acted: Any, rows: int, categorical: bool) -> GymWrapper:
    if not rows:
        return GymWrapper(SpaceEnv(observed, acted), categorical)
    vector = gymnasium.vector.SyncVectorEnv(
        [lambda: SpaceEnv(observed, acted)] * rows,
        autoreset_mode=gymnasium.vector.AutoresetMode.DISABLED,
    )
    return GymWrapper(vector, categorical)


def same(left: Any, right: Any) -> bool:
    """Return True if two members of a space are equal."""
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(same(left[key], right[key]) for key in left)
    if isinstance(left, tuple):
        return len(left) == len(right) and all(map(same, left, right))
    if left is None or isinstance(left, str):
        return bool(left == right)
    return bool(np.array_equal(left, right))


@both_encodings
@each_space
def test_decode_inverts_encode(space: spaces.Space[Any], categorical: bool) -> None:
    codec = codec_of(space, CodecOptions(None, categorical, remap_state=False))
    space.seed(1)
    for _ in range(5):
        member = space.sample()
        encoded = codec.encode(member)
        assert codec.spec.is_in(encoded)
        assert same(codec.decode(encoded), member)
        assert space.contains(codec.decode(encoded))


@both_encodings
@each_space
def test_decode_inverts_encode_for_batches(space: spaces.Space[Any], categorical: bool) -> None:
    batched = gymnasium.vector.utils.batch_space(space, 3)
    codec = codec_of(space, CodecOptions(3, categorical, remap_state=False))
    batched.seed(1)
    members = batched.sample()
    encoded = codec.encode(members)
    assert codec.spec.is_in(encoded)
    rows = gymnasium.vector.utils.iterate(batched, codec.decode(encoded))
    given = gymnasium.vector.utils.iterate(batched, members)
    assert all(map(same, rows, given))


@single_and_vector
@each_space
def test_observations_are_in_the_spec(
    space: spaces.Space[Any], categorical: bool, rows: int
) -> None:
    env = wrap(space, None, rows, categorical)
    env.set_seed(0)
    rollout = env.rollout(4)
    assert rollout.shape == torch.Size([*env.batch_size, 4])
    for index in range(4):
        step = rollout[..., index]
        for key, spec in env.observation_spec.items(True, True):
            assert spec.is_in(step.get(key)), key
            assert spec.is_in(step.get(("next", *((key,) if isinstance(key, str) else key)))), key


@single_and_vector
@each_space
def test_random_actions_are_members_of_the_space(
    space: spaces.Space[Any], categorical: bool, rows: int
) -> None:
    """The mock raises if an action is not a member."""
    env = wrap(BOX, space, rows, categorical)
    rollout = env.rollout(6)
    assert rollout["next", "reward"].sum() == 6 * max(rows, 1)
    for key, spec in env.full_action_spec.items(True, True):
        assert spec.is_in(rollout[..., 0].get(key))


@each_space
def test_random_actions_follow_torchs_seed(space: spaces.Space[Any]) -> None:
    def drawn() -> list[Any]:
        env = SpaceEnv(BOX, space)
        torch.manual_seed(3)
        GymWrapper(env).rollout(4)
        return env.acted

    assert all(map(same, drawn(), drawn()))


@pytest.mark.parametrize("name", ["text", "sequence", "graph", "one_of", "own"])
def test_objects_are_not_changed(name: str) -> None:
    env = SpaceEnv(SPACES[name])
    wrapper = GymWrapper(env)
    assert isinstance(wrapper.observation_spec["observation"], NonTensor)
    rollout = wrapper.rollout(3)
    for index in range(3):
        assert same(rollout[index]["observation"], env.observed[index])
        assert same(rollout[index]["next", "observation"], env.observed[index + 1])


def test_each_row_of_a_vector_env_has_its_object() -> None:
    env = wrap(spaces.Text(6), None, 3, False)
    env.set_seed(0)
    rollout = env.rollout(2)
    for row in range(3):
        single = GymWrapper(SpaceEnv(spaces.Text(6)))
        single.set_seed(row)
        assert rollout[row, 1]["observation"] == single.rollout(2)[1]["observation"]


@pytest.mark.parametrize(
    ("space", "shapes"),
    [
        (NESTED["dict"], {"a": (2,), "b": (3,)}),
        (NESTED["dict_of_dict"], {("a", "b", "c"): (2,), ("a", "d"): (2,)}),
        (NESTED["dict_of_tuple"], {("a", "0"): (2,), ("a", "1"): (3,)}),
        (NESTED["tuple_alike"], {"observation": (2, 2)}),
        (NESTED["tuple_of_tuple"], {"observation": (2, 2, 2)}),
        (NESTED["tuple_of_dict"], {("observation", "a"): (2, 2)}),
        (spaces.Dict(state=BOX), {"observation": (2,)}),
        (spaces.Dict(state=BOX, observation=BOX), {"state": (2,), "observation": (2,)}),
        (spaces.Box(0, 255, (8, 8, 3), np.uint8), {"pixels": (8, 8, 3)}),
        (spaces.Box(0, 255, (8, 8, 1), np.uint8), {"observation": (8, 8, 1)}),
        (spaces.Box(0, 1, (8, 8, 3), np.float32), {"observation": (8, 8, 3)}),
        (spaces.Box(-1, 1, (), np.float32), {"observation": (1,)}),
        (NUMBERS["multi_discrete"], {"observation": (9,)}),
        (NUMBERS["multi_discrete_same"], {"observation": (2, 3)}),
        (NUMBERS["multi_discrete_2d"], {"observation": (14,)}),
        (NUMBERS["multi_discrete_2d_same"], {"observation": (2, 2, 2)}),
    ],
)
def test_keys_and_shapes_of_values(space: Any, shapes: dict[Any, Any]) -> None:
    spec = GymWrapper(SpaceEnv(space)).observation_spec
    assert {key: tuple(leaf.shape) for key, leaf in spec.items(True, True)} == shapes


def test_entries_of_a_dict_action_are_at_the_root() -> None:
    env = GymWrapper(
        SpaceEnv(BOX, spaces.Dict(move=BOX, jump=spaces.Dict(high=spaces.Discrete(2))))
    )
    assert set(env.action_keys) == {"move", ("jump", "high")}


def test_different_elements_of_a_tuple_action_are_at_their_index() -> None:
    env = GymWrapper(SpaceEnv(BOX, spaces.Tuple((BOX, spaces.Discrete(2)))))
    assert env.action_keys == [("action", "0"), ("action", "1")]


def test_values_of_a_space_with_a_start_count_from_zero() -> None:
    env = SpaceEnv(spaces.Discrete(3, start=10), spaces.Discrete(4, start=-1))
    wrapper = GymWrapper(env, categorical_action_encoding=True)
    start = wrapper.reset()
    assert int(start["observation"]) == env.observed[0] - 10
    start["action"] = torch.tensor(3)
    wrapper.step(start)
    assert env.acted == [2]


def test_observations_share_no_memory_with_the_env() -> None:
    env = SpaceEnv(spaces.Dict(a=BOX, b=spaces.Sequence(BOX)))
    start = GymWrapper(env).reset()
    kept = start["a"].clone()
    env.observed[0]["a"][:] = 7
    for array in env.observed[0]["b"]:
        array[:] = 7
    assert torch.equal(start["a"], kept)
    assert all((array != 7).all() for array in start["b"])


def test_the_spec_of_a_vector_env_is_that_of_one_env_with_a_batch_dim() -> None:
    single = wrap(NESTED["dict_of_tuple"], NUMBERS["multi_discrete"], 0, False)
    vector = wrap(NESTED["dict_of_tuple"], NUMBERS["multi_discrete"], 4, False)
    for one, many in (
        (single.observation_spec, vector.observation_spec),
        (single.full_action_spec, vector.full_action_spec),
    ):
        assert isinstance(many, Composite)
        assert {key: (4, *leaf.shape) for key, leaf in one.items(True, True)} == {
            key: tuple(leaf.shape) for key, leaf in many.items(True, True)
        }

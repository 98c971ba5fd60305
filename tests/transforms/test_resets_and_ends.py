"""No-ops after a reset, conditions that end an episode, and batches in another shape."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, cast

import pytest
import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from tdx import (
    BatchSizeTransform,
    CartPoleEnv,
    CatFrames,
    Compose,
    ExpandAs,
    GymEnv,
    InitTracker,
    NoopResetEnv,
    ParallelEnv,
    PendulumEnv,
    RewardSum,
    SerialEnv,
    StepCounter,
    TensorDictPrimer,
    TerminateTransform,
    TransformedEnv,
    Unbounded,
    check_env_specs,
)
from tdx.core.envs import EnvBase
from tdx.errors import ArgumentError, ChainError, KeyNotFoundError, TdxError
from tdx.specs import Categorical, Composite
from tdx.transforms import Transform
from tests.envs.mocks import CountingEnv
from tests.transforms.driving import assert_same, driven
from tests.transforms.mocks import GroupsEnv, RowsEnv

# NoopResetEnv


def noop_counts(env: EnvBase, resets: int) -> list[int]:
    return [int(env.reset()["observation"]) for _ in range(resets)]


def test_the_number_of_noops_is_drawn_for_each_reset() -> None:
    env = TransformedEnv(CountingEnv(stop=100), NoopResetEnv(4))
    assert set(noop_counts(env, 60)) == {1, 2, 3, 4}


def test_the_number_of_noops_can_be_fixed() -> None:
    assert noop_counts(TransformedEnv(CountingEnv(stop=100), NoopResetEnv(4, False)), 3) == [4] * 3
    assert noop_counts(TransformedEnv(CountingEnv(stop=100), NoopResetEnv(0)), 3) == [0] * 3


def test_an_env_that_ends_meanwhile_begins_anew() -> None:
    env = TransformedEnv(CountingEnv(stop=3), NoopResetEnv(7, random=False))
    first = env.reset()
    assert int(first["observation"]) == 7 % 3
    assert not first["done"].any()
    assert env.base_env.resets == 3


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        (Categorical(3), 0),
        (Composite(a=Composite(action=Categorical(3))), 0),
        (Unbounded((2,)), [0.0, 0.0]),
    ],
)
def test_a_noop_is_the_action_zero(spec: Any, expected: object) -> None:
    given: list[Any] = []

    class Listening(CountingEnv):
        def __init__(self) -> None:
            super().__init__(stop=100)
            self.action_spec = spec

        def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
            given.append(tensordict[self.action_key].tolist())
            return super()._step(TensorDict(action=torch.zeros(2)))

    TransformedEnv(Listening(), NoopResetEnv(2, random=False)).reset()
    assert given == [expected, expected]


def test_stages_before_it_see_steps_and_those_after_a_reset() -> None:
    env = TransformedEnv(
        CountingEnv(stop=100),
        Compose(
            StepCounter(),
            CatFrames(2, -1, ["observation"], ["stack"]),
            NoopResetEnv(3, random=False),
            StepCounter(step_count_key="mine"),
            InitTracker(),
        ),
    )
    first = env.reset()
    assert [int(first[key]) for key in ("step_count", "mine", "is_init")] == [3, 0, 1]
    assert first["stack"].tolist() == [2, 3]
    after = env.rand_step(first)["next"]
    assert [int(after[key]) for key in ("step_count", "mine", "is_init")] == [4, 1, 0]
    assert after["stack"].tolist() == [3, 4]
    check_env_specs(env)


def counting() -> EnvBase:
    return CountingEnv(stop=5)


@pytest.mark.timeout(120)
@pytest.mark.parametrize("batch", [SerialEnv, ParallelEnv])
def test_each_row_of_a_batch_has_its_own_noops(batch: Callable[..., Any]) -> None:
    base = batch(4, counting)
    env = TransformedEnv(base, NoopResetEnv(12))
    try:
        counts = torch.stack([env.reset()["observation"].flatten() for _ in range(10)])
        assert counts.unique().tolist() == [0, 1, 2, 3, 4]
        assert not counts.eq(counts[:, :1]).all()
        for _ in range(5):
            before = env.reset()
            mask = torch.tensor([[True], [False], [True], [False]])
            after = env.reset(before.clone().set("_reset", mask))
            assert after["observation"][1::2].equal(before["observation"][1::2])
            following = env.rand_step(after.clone())["next", "observation"]
            assert following.equal(after["observation"] + 1)
    finally:
        env.close()


@pytest.mark.parametrize("make", [PendulumEnv, CartPoleEnv])
def test_rows_of_a_native_env(make: Callable[..., Any]) -> None:
    base = make(batch_size=[6])
    env = TransformedEnv(base, NoopResetEnv(5))
    before = env.reset()
    assert base.elapsed_steps.unique().numel() > 1
    assert base.elapsed_steps.max() <= 5
    elapsed, state = base.elapsed_steps, base.state
    mask = torch.tensor([[True], [False]] * 3)
    after = env.reset(before.clone().set("_reset", mask))
    assert base.elapsed_steps[1::2].equal(elapsed[1::2])
    assert base.state[1::2].equal(state[1::2])
    assert after["observation"][1::2].equal(before["observation"][1::2])
    assert not after["observation"][::2].equal(before["observation"][::2])


def test_a_batch_that_cannot_be_stepped_in_part() -> None:
    with pytest.raises(ChainError, match="RowsEnv, upstream of it, cannot step some rows"):
        TransformedEnv(RowsEnv((4,)), NoopResetEnv()).reset()
    env = TransformedEnv(PendulumEnv(batch_size=[4]), Compose(StepCounter(), NoopResetEnv()))
    with pytest.raises(ChainError, match="StepCounter, upstream") as caught:
        env.reset()
    assert caught.value.where.stage == 1


@pytest.mark.parametrize("noops", [-1, 2.5, True])
def test_a_number_of_noops_that_is_none(noops: Any) -> None:
    with pytest.raises(ArgumentError, match="noops must be an integer of at least 0"):
        NoopResetEnv(noops)


# TerminateTransform


def at_two(tensordict: TensorDictBase) -> Tensor:
    reached: Tensor = tensordict["observation"] >= 2
    return reached


def test_an_episode_ends_where_the_condition_holds() -> None:
    env = TransformedEnv(CountingEnv(stop=100), TerminateTransform(at_two))
    rollout = env.rollout(10)
    assert rollout["next", "terminated"].flatten().tolist() == [False, True]
    assert rollout["next", "done"].flatten().tolist() == [False, True]
    assert not rollout["next", "truncated"].any()
    check_env_specs(env)


def test_flags_of_the_env_stay() -> None:
    env = TransformedEnv(CountingEnv(stop=1), TerminateTransform(lambda td: False))
    assert env.rollout(10)["next", "terminated"].flatten().tolist() == [True]


def test_done_can_be_left_alone() -> None:
    stop = TerminateTransform(at_two, write_done=False)
    rollout = TransformedEnv(CountingEnv(stop=4), stop).rollout(10)["next"]
    assert rollout["terminated"].flatten().tolist() == [False, True, True, True]
    assert rollout["done"].flatten().tolist() == [False, False, False, True]


@pytest.mark.parametrize(
    "stop",
    [
        lambda td: td["observation"][..., 0] > 12,
        lambda td: td["observation"][..., :1] > 12,
        lambda td: (td["observation"][..., 0] > 12).float(),
        lambda td: (td["observation"][..., 0] > 12).numpy(),
    ],
    ids=["rows", "flags", "floats", "array"],
)
def test_each_row_ends_by_itself(stop: Callable[[TensorDictBase], Any]) -> None:
    env = TransformedEnv(RowsEnv((2, 3), endless=True), TerminateTransform(stop))
    flags = env.step(env.rand_action(env.reset()))["next", "done"]
    assert flags.flatten().tolist() == [False, False, True, True, True, True]


def test_one_answer_is_for_all_rows_and_groups() -> None:
    env = TransformedEnv(GroupsEnv((2,)), TerminateTransform(lambda td: True))
    following = env.rand_step(env.reset())["next"]
    assert following["solo", "terminated"].all()
    assert following["pair", "done"].shape == (2, 2, 1)
    assert following["pair", "done"].all()


def test_an_env_with_done_alone_gets_terminated() -> None:
    base = CountingEnv(stop=100)
    base.done_spec = Categorical(2, shape=(1,), dtype=torch.bool)
    env = TransformedEnv(base, TerminateTransform(at_two))
    assert "terminated" in env.done_keys
    assert env.rollout(5)["next", "terminated"].flatten().tolist() == [False, True]
    check_env_specs(env)


def test_stored_data_is_marked() -> None:
    stored = CountingEnv(stop=100).rollout(4)
    marked = TerminateTransform(at_two)(stored)
    assert marked["next", "done"].flatten().tolist() == [False, True, True, True]
    assert not marked["done"].any()


@pytest.mark.parametrize(
    ("stop", "message"),
    [
        (lambda td: None, "stop returned NoneType"),
        (lambda td: torch.ones(3, dtype=torch.bool), r"shape \(3,\), the done flag has \(2, 1\)"),
    ],
)
def test_an_answer_that_is_none(stop: Callable[[TensorDictBase], Any], message: str) -> None:
    env = TransformedEnv(RowsEnv((2,)), TerminateTransform(stop))
    with pytest.raises(ArgumentError, match=message):
        env.rand_step(env.reset())


def test_a_condition_that_is_no_function() -> None:
    with pytest.raises(ArgumentError, match="stop must be a function"):
        TerminateTransform(True)  # type: ignore[arg-type]


# ExpandAs


def test_flags_get_the_shape_of_agents() -> None:
    expand = ExpandAs("done", ("agents", "reward"), ("agents", "ended"))
    tensordict = TensorDict(
        {"done": torch.tensor([[True], [False]]), "agents": {"reward": torch.zeros(2, 3, 1)}},
        batch_size=[2],
    )
    ended = expand(tensordict)["agents", "ended"]
    assert ended.shape == (2, 3, 1)
    assert ended[0].all()
    assert not ended[1].any()
    ended[0, 0] = False
    assert ended[0].sum() == 2


def test_the_spec_keeps_its_ends() -> None:
    env = TransformedEnv(RowsEnv((4,)), ExpandAs("done", "observation", "wide"))
    spec = env.full_done_spec["wide"]
    assert (spec.shape, spec.dtype) == (torch.Size([4, 3]), torch.bool)
    assert env.reset()["wide"].shape == (4, 3)


def test_a_reference_that_a_reset_does_not_have() -> None:
    env = TransformedEnv(GroupsEnv(), ExpandAs(("solo", "done"), ("pair", "reward"), "ended"))
    assert env.reset()["ended"].shape == (2, 1)
    check_env_specs(env)


@pytest.mark.parametrize(
    ("transform", "error", "message"),
    [
        (ExpandAs("observation", "action"), KeyNotFoundError, "has no key 'action'"),
        (ExpandAs("observation", "reward"), ArgumentError, r"shape \(3,\) does not expand to the"),
        (ExpandAs("pixels", "image"), ArgumentError, "does not expand"),
    ],
)
def test_shapes_that_do_not_fit(transform: Transform, error: type[TdxError], message: str) -> None:
    with pytest.raises(error, match=message):
        TransformedEnv(RowsEnv(), transform).reset()


def test_a_category_in_one_hot_form_cannot_be_repeated() -> None:
    base = GymEnv("CartPole-v1")
    base.observation_spec = Composite(
        choice=base.action_spec.clone(), wide=Unbounded((2, 4)), shape=()
    )
    env = TransformedEnv(base, ExpandAs("choice", "wide"))
    with pytest.raises(ArgumentError, match="OneHot 'choice' cannot be expanded"):
        env.output_spec  # noqa: B018


# BatchSizeTransform


def halves() -> BatchSizeTransform:
    return BatchSizeTransform(batch_size=[2, 2])


def stages() -> list[Transform]:
    return [
        RewardSum(),
        StepCounter(),
        CatFrames(2, -1, ["observation"]),
        InitTracker(),
        CatFrames(2, -1, ["precise"]),
        TensorDictPrimer(h=Unbounded((2,))),
        RewardSum(["reward"], ["again"]),
    ]


@pytest.mark.parametrize("place", range(8))
def test_rows_do_not_notice_the_shape_of_their_batch(place: int) -> None:
    plain = TransformedEnv(RowsEnv((4,)), Compose(*stages()))
    chain = [*stages()[:place], halves(), *stages()[place:]]
    env = TransformedEnv(RowsEnv((4,)), Compose(*chain))
    assert env.batch_size == (2, 2)
    assert_same(driven(env).reshape(4, 8), driven(plain))
    check_env_specs(env)


def test_a_single_env_becomes_a_batch_of_one() -> None:
    env = TransformedEnv(GymEnv("CartPole-v1"), BatchSizeTransform(batch_size=[1]))
    assert env.action_spec.shape == (1, 2)
    assert env.rollout(5, break_when_any_done=False).shape == (1, 5)
    check_env_specs(env)


@pytest.mark.parametrize(
    "reshape",
    [
        lambda td: td.reshape(2, 2),
        lambda td: td.unflatten(0, (2, 2)),
        lambda td: td.unsqueeze(0).reshape(2, 2, 1).squeeze(-1),
    ],
)
def test_the_shape_as_a_function(reshape: Callable[[TensorDictBase], TensorDictBase]) -> None:
    env = TransformedEnv(RowsEnv((4,)), BatchSizeTransform(reshape_fn=reshape))
    assert_same(driven(env), driven(TransformedEnv(RowsEnv((4,)), halves())))


def test_there_and_back() -> None:
    back = BatchSizeTransform(reshape_fn=lambda td: td.flatten(0, 1))
    env = TransformedEnv(TransformedEnv(RowsEnv((4,)), halves()), back)
    assert_same(driven(env), driven(RowsEnv((4,))))
    assert_same(
        driven(TransformedEnv(RowsEnv((4,)), Compose(Compose(halves()), back.clone()))),
        driven(RowsEnv((4,))),
    )


class AnySize(EnvBase):
    """Steps TensorDicts of any batch size."""

    def __init__(self) -> None:
        super().__init__()
        self._batch_locked = False
        self.observation_spec = Composite(observation=Unbounded((3,)))
        self.action_spec = Unbounded((1,))

    def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
        size = self.batch_size if tensordict is None else tensordict.batch_size
        return TensorDict(observation=torch.rand(*size, 3), batch_size=size)

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        size = tensordict.batch_size
        flags, rewards = torch.zeros(*size, 1, dtype=torch.bool), torch.ones(*size, 1)
        seen = torch.rand(*size, 3)
        return TensorDict(observation=seen, reward=rewards, done=flags, batch_size=size)

    def _set_seed(self, seed: int | None) -> None:
        return None


def test_an_env_that_is_not_locked_gets_as_many_rows() -> None:
    size = BatchSizeTransform(batch_size=[5])
    env = TransformedEnv(AnySize(), Compose(size, StepCounter(3)))
    rollout = env.rollout(4, break_when_any_done=False)
    assert rollout["next", "step_count"][0].flatten().tolist() == [1, 2, 3, 1]
    assert not rollout["observation"][0].equal(rollout["observation"][1])
    check_env_specs(env)


def test_a_reset_of_ones_own() -> None:
    def first(tensordict: Any, reset: TensorDictBase, env: EnvBase) -> TensorDictBase:
        return env.observation_spec.zero().update(env.full_done_spec.zero())

    size = BatchSizeTransform(batch_size=[5], reset_func=first, env_kwarg=True)
    env = TransformedEnv(AnySize(), size)
    assert env.reset()["observation"].tolist() == [[0.0] * 3] * 5
    wrong = BatchSizeTransform(batch_size=[5], reset_func=lambda given, reset: reset[:2])
    with pytest.raises(ArgumentError, match=r"reset_func returned \(2,\)"):
        TransformedEnv(AnySize(), wrong).reset()


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (BatchSizeTransform, ArgumentError, "neither of batch_size and reshape_fn"),
        (
            partial(BatchSizeTransform, batch_size=[1], reshape_fn=lambda td: td),
            ArgumentError,
            "both of batch_size and reshape_fn",
        ),
        (
            partial(BatchSizeTransform, batch_size=cast(Any, ["a"])),
            ArgumentError,
            "list of integers",
        ),
        (partial(BatchSizeTransform, batch_size=[-1]), ArgumentError, "list of integers"),
        (partial(BatchSizeTransform, batch_size=[3]), ChainError, "3 rows, the env's .4,. has 4"),
        (
            partial(BatchSizeTransform, reshape_fn=lambda td: td[torch.tensor([1, 0, 2, 3])]),
            ArgumentError,
            "does not keep the rows in their order",
        ),
    ],
)
def test_sizes_that_do_not_fit(
    make: Callable[[], BatchSizeTransform], error: type[TdxError], message: str
) -> None:
    with pytest.raises(error, match=message):
        TransformedEnv(RowsEnv((4,)), make())

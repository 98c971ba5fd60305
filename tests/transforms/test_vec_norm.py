"""Trap 7 of the reference, and further behavior of running statistics."""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest
import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from tdx import (
    CatTensors,
    Compose,
    EnvCreator,
    GymEnv,
    InitTracker,
    ObservationNorm,
    ParallelEnv,
    SerialEnv,
    TransformedEnv,
    VecNorm,
    VecNormV2,
)
from tdx.core.envs import EnvBase
from tdx.core.transforms import statistics
from tdx.foundation.errors import ArgumentError, ChainError, KeyNotFoundError, WorkerError
from tests.transforms.envs import GroupsEnv, RowsEnv
from tests.transforms.fixed_rollouts import FixedActions, assert_same, entries, fixed_rollout

SOLO, PAIR = ("solo", "observation"), ("pair", "observation")


def plain(**kwargs: Any) -> VecNorm:
    """Return a normalizer of the observation without decay."""
    return VecNorm(["observation"], decay=1.0, **kwargs)


def made() -> EnvBase:
    return TransformedEnv(RowsEnv(endless=True), VecNorm(decay=1.0))


def fed(norm: VecNorm, *rows: list[float]) -> Tensor:
    """Return the normalized last observation."""
    for row in rows:
        tensordict = norm._call(TensorDict(observation=torch.tensor(row)))
    result: Tensor = tensordict["observation"]
    return result


def state_of(transform: Any) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in transform.state_dict().items()}


def assert_same_state(transform: Any, state: dict[str, Tensor]) -> None:
    for name, value in transform.state_dict().items():
        assert torch.equal(value, state[name]), name


# Counts


@pytest.mark.timeout(120)
@pytest.mark.parametrize("batch", [SerialEnv, ParallelEnv])
def test_workers_count_together(batch: Callable[..., Any]) -> None:
    creator = EnvCreator(made)
    watching = creator()
    env = batch(3, creator)
    try:
        env.rollout(50, break_when_any_done=False)
    finally:
        env.close()
    norm = watching.transform
    assert isinstance(norm, VecNorm)
    assert norm.count["reward"] == 3 * 50
    assert norm.count["observation"] == 3 * (50 + 1)
    # The first element of an observation is the number of the step.
    assert norm.loc["observation"][0].item() == pytest.approx(25.0, rel=1e-12)


def made_slow() -> EnvBase:
    """Env whose statistics change slowly, so that other workers interfere."""
    module = vars(statistics)
    add_values = module["add_values"]

    def slowly(moments: Tensor, *args: Any) -> None:
        before = moments.clone()
        time.sleep(0.002)
        moments.copy_(before)
        add_values(moments, *args)

    module["add_values"] = slowly
    return made()


@pytest.mark.timeout(120)
def test_updates_of_all_workers_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(vars(statistics), "add_values", vars(statistics)["add_values"])
    creator = EnvCreator(made_slow)
    env = ParallelEnv(3, creator)
    try:
        env.rollout(20, break_when_any_done=False)
    finally:
        env.close()
    count = creator.state_dict()["transform.statistics/reward"][2]
    assert count.tolist() == [3 * 20]


@pytest.mark.parametrize("batch_size", [(4,), (2, 3)])
def test_a_batch_counts_its_rows(batch_size: tuple[int, ...]) -> None:
    env = TransformedEnv(RowsEnv(batch_size, endless=True), plain())
    env.rollout(5)
    rows = torch.Size(batch_size).numel()
    assert env.transform.count["observation"] == rows * 6


def test_a_partial_reset_counts_the_rows_that_it_resets() -> None:
    env = TransformedEnv(RowsEnv((4,), endless=True), plain())
    current = env.step_mdp(env.step(FixedActions(env)(env.reset())))
    before = env.transform.loc["observation"] * 8
    reset = env.reset(current.set("_reset", torch.tensor([[True], [False], [False], [True]])))
    assert env.transform.count["observation"] == 10
    # At its reset a row observes ten times its number, minus a third of that, and zero.
    news = torch.tensor([30.0, -10.0, 0.0])
    torch.testing.assert_close(env.transform.loc["observation"] * 10, (before + news))
    assert reset["observation"][1].equal(current["observation"][1])


def test_a_partial_reset_of_no_row_changes_nothing() -> None:
    env = TransformedEnv(RowsEnv((2,), endless=True), VecNorm(["observation"], decay=0.5))
    current = env.reset()
    before = state_of(env.transform)
    env.reset(current.set("_reset", torch.zeros(2, 1, dtype=torch.bool)))
    assert_same_state(env.transform, before)


def test_statistics_continue_across_episodes() -> None:
    env = TransformedEnv(RowsEnv(), VecNorm(decay=1.0))
    rollout = env.rollout(6, break_when_any_done=False)
    episodes = 1 + int(rollout["next", "done"][:-1].sum())
    assert episodes > 1
    assert env.transform.count["observation"] == 6 + episodes
    assert env.transform.count["reward"] == 6


def test_groups_count_by_their_own_resets() -> None:
    env = TransformedEnv(GroupsEnv((2,)), VecNorm([SOLO, PAIR], decay=1.0))
    current = env.step_mdp(env.step(FixedActions(env)(env.reset())))
    current["solo", "_reset"] = torch.tensor([[True], [False]])
    env.reset(current)
    count = env.transform.count
    assert count[SOLO] == 5
    assert count[PAIR] == 4
    assert env.transform.loc[PAIR].shape == (2, 3)


# Values


def test_values_are_normalized_by_earlier_statistics() -> None:
    norm = plain()
    rows = [[1.0, 2.0], [3.0, 5.0], [4.0, 4.0]]
    result = fed(norm, *rows)
    seen = torch.tensor(rows)
    expected = (seen[-1] - seen.mean(0)) / seen.std(0, correction=0)
    torch.testing.assert_close(result, expected)
    torch.testing.assert_close(norm.loc["observation"], seen.double().mean(0))
    torch.testing.assert_close(norm.var["observation"], seen.double().var(0, correction=0))
    torch.testing.assert_close(norm.scale["observation"].square(), norm.var["observation"])


def test_an_entry_that_an_earlier_one_overwrites_is_planned_as_it_is_stepped() -> None:
    def rollout(planned: bool) -> TensorDictBase:
        norm = VecNorm(in_keys=["observation", "other"], out_keys=["other", "third"], decay=0.9)
        copied = CatTensors(["observation"], "other", del_keys=False)
        env = TransformedEnv(GymEnv("CartPole-v1"), Compose(copied, norm))
        env.planned = planned
        env.set_seed(0)
        torch.manual_seed(0)
        return env.rollout(40, break_when_any_done=False)

    assert_same(rollout(planned=True), rollout(planned=False))


def test_decay() -> None:
    norm = VecNorm(["observation"], decay=0.5)
    fed(norm, [1.0], [3.0])
    assert norm.count["observation"] == 1.5
    assert norm.loc["observation"].item() == (0.5 * 1 + 3) / 1.5


def test_constant_input_stays_bounded() -> None:
    norm = VecNorm(["observation"])
    for _ in range(50):
        result = fed(norm, [1e4, -3.3, 0.1])
    assert result.abs().max() < 1e-2
    assert fed(norm, [1e4, -3.2, 0.1]).isfinite().all()


def test_a_long_stream_far_from_zero_loses_no_digits() -> None:
    norm = plain()
    stream = 1e5 + torch.randn(2000, 3, dtype=torch.float64)
    norm(TensorDict(observation=stream.float(), batch_size=[2000]))
    torch.testing.assert_close(norm.scale["observation"], torch.ones(3).double(), rtol=0.1, atol=0)


def test_integers_become_floats() -> None:
    env = TransformedEnv(RowsEnv(), VecNorm(["pixels"]))
    assert env.full_observation_spec["pixels"].dtype is torch.float32
    assert env.rollout(3)["pixels"].dtype is torch.float32


def test_values_before_the_first_update() -> None:
    env = TransformedEnv(RowsEnv(), plain())
    env.eval()
    assert_same(fixed_rollout(env), fixed_rollout(RowsEnv()))


def test_denorm_inverts_the_normalization() -> None:
    env = TransformedEnv(RowsEnv(), VecNorm(["observation"], ["normal"], decay=1.0))
    env.rollout(4, break_when_any_done=False)
    env.transform.freeze()
    rollout = fixed_rollout(env)
    restored = env.transform.denorm(rollout.exclude("observation", ("next", "observation")))
    for key in ("observation", ("next", "observation")):
        torch.testing.assert_close(restored[key], rollout[key])


# Frozen, and fixed


def stepped(env: EnvBase) -> TensorDictBase:
    return env.rand_step(env.reset())


def reset_in_part(env: EnvBase) -> TensorDictBase:
    return env.reset(env.reset().set("_reset", torch.tensor([[True], [False]])))


def offline(env: EnvBase) -> TensorDictBase:
    stored: TensorDictBase = env.transform(RowsEnv((2,)).rollout(3).clone())  # type: ignore[operator]
    return stored


def evaluated(norm: VecNorm) -> VecNorm:
    return norm.eval()


def frozen(norm: VecNorm) -> VecNorm:
    return norm.freeze()


@pytest.mark.parametrize("still", [evaluated, frozen])
@pytest.mark.parametrize("path", [stepped, reset_in_part, fixed_rollout, offline])
def test_frozen_and_evaluated_results_are_bit_identical(
    still: Callable[[VecNorm], VecNorm], path: Callable[[EnvBase], TensorDictBase]
) -> None:
    env = TransformedEnv(RowsEnv((2,)), plain())
    fixed_rollout(env)
    norm = env.transform
    assert isinstance(norm, VecNorm)
    still(norm)
    before = state_of(norm)
    path(env)
    assert_same_state(norm, before)
    assert_same(fixed_rollout(env), fixed_rollout(env))


def test_unfreeze_resumes_updates() -> None:
    norm = plain()
    fed(norm, [1.0])
    norm.freeze()
    assert norm.frozen
    fed(norm, [2.0])
    assert norm.unfreeze() is norm
    fed(norm, [2.0])
    assert norm.count["observation"] == 2


def test_frozen_copy_is_independent() -> None:
    norm = plain()
    fed(norm, [1.0], [2.0])
    copied = norm.frozen_copy()
    fed(norm, [7.0])
    assert copied.frozen
    assert not norm.frozen
    assert copied.count["observation"] == 2
    with pytest.raises(ChainError, match="no statistics yet"):
        plain().frozen_copy()


def test_new_api_creates_the_second_version() -> None:
    norm: object = VecNorm(["observation"], decay=0.9, new_api=True)
    assert isinstance(norm, VecNormV2)
    assert norm.decay == 0.9
    assert type(VecNorm(["observation"], new_api=False)) is VecNorm


@pytest.mark.parametrize("keys", [["observation"], ["observation", "reward", "precise"]])
def test_statistics_are_readable(keys: list[Any]) -> None:
    env = TransformedEnv(RowsEnv((4,)), VecNorm(keys, [f"{key}_n" for key in keys]))
    fixed_rollout(env)
    norm = env.transform
    assert isinstance(norm, VecNorm)
    fixed = norm.to_observation_norm()
    assert isinstance(fixed, ObservationNorm if len(keys) == 1 else Compose)
    norm.freeze()
    expected = fixed_rollout(env)
    before = fixed_rollout(TransformedEnv(RowsEnv((4,)), fixed))
    assert_same(before, expected)
    norm.unfreeze()
    fixed_rollout(env)
    assert_same(fixed_rollout(TransformedEnv(RowsEnv((4,)), fixed.clone())), before)


# State


def test_state_dict_round_trip() -> None:
    env = TransformedEnv(RowsEnv((4,)), Compose(InitTracker(), VecNorm(decay=0.9)))
    fixed_rollout(env)
    state = {name: value.clone() for name, value in env.state_dict().items()}
    other = TransformedEnv(RowsEnv((4,)), Compose(InitTracker(), VecNorm(decay=0.9)))
    other.load_state_dict(state)
    assert_same(fixed_rollout(other), fixed_rollout(env))
    third = Compose(InitTracker(), VecNorm(decay=0.9))
    third.load_state_dict({name.removeprefix("transform."): state[name] for name in state})
    assert_same_state(third, {name.removeprefix("transform."): state[name] for name in state})


@pytest.mark.parametrize("copy", [deepcopy, lambda env: pickle.loads(pickle.dumps(env))])
def test_copy_has_independent_statistics(copy: Callable[[Any], Any]) -> None:
    env = TransformedEnv(RowsEnv((4,)), plain())
    fixed_rollout(env)
    before = state_of(env.transform)
    copied = copy(env)
    assert_same_state(copied.transform, before)
    fixed_rollout(copied)
    assert_same_state(env.transform, before)


def test_a_clone_shares_its_statistics() -> None:
    env = TransformedEnv(RowsEnv(), plain())
    env.reset()
    fed(env.transform.clone(), [1.0, 2.0, 3.0])
    assert env.transform.count["observation"] == 2


def test_statistics_follow_a_move() -> None:
    norm = VecNorm(decay=1.0)
    fixed_rollout(TransformedEnv(RowsEnv((4,)), norm))
    norm.to("meta")
    for values in (norm.loc, norm.var, norm.count, norm.scale):
        assert {value.device.type for value in entries(values).values()} == {"meta"}


@pytest.mark.gpu
def test_on_an_accelerator() -> None:
    env = TransformedEnv(RowsEnv((4,)), VecNorm(decay=1.0))
    fixed_rollout(env, 4)
    state = state_of(env.transform)
    env.to("cuda")
    assert {value.device.type for value in entries(env.transform.loc).values()} == {"cuda"}
    expected = TransformedEnv(RowsEnv((4,)), VecNorm(decay=1.0))
    expected.transform.load_state_dict(state)
    for (key, value), (_, wanted) in zip(
        sorted(fixed_rollout(env).items(True, True), key=str),
        sorted(fixed_rollout(expected).items(True, True), key=str),
        strict=True,
    ):
        torch.testing.assert_close(value.cpu(), wanted, msg=str(key))


def test_statistics_in_a_shared_tensordict() -> None:
    shared = VecNorm.build_td_for_shared_vecnorm(RowsEnv((4,)))
    for _ in range(2):
        TransformedEnv(RowsEnv((4,), endless=True), VecNorm(shared_td=shared, decay=1.0)).rollout(3)
    assert shared["observation"].is_shared()
    assert shared["observation"][2].tolist() == [2 * 4 * 4] * 3
    assert shared["reward"][2].tolist() == [2 * 4 * 3]


def test_a_lock_is_held_while_statistics_change() -> None:
    class Counted:
        entered = 0

        def __enter__(self) -> None:
            self.entered += 1

        def __exit__(self, *exc_info: object) -> None:
            return None

    lock = Counted()
    env = TransformedEnv(RowsEnv(), plain(lock=lock))
    env.rollout(2)
    assert lock.entered == 3


def test_a_lock_timeout_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tdx.envs.batched.env_creator._LOCK_TIMEOUT", 0.01)
    env = EnvCreator(made)()
    norm = env.transform
    assert isinstance(norm, VecNorm)
    assert norm.lock is not None
    with norm.lock, pytest.raises(WorkerError, match="was not released"):
        env.reset()


# Errors


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"decay": 0.0}, "decay must be a number above 0 and at most 1, got 0"),
        ({"decay": 1.5}, "decay must be"),
        ({"decay": True}, "decay must be"),
        ({"eps": 0.0}, "eps must be a number above 0, got 0"),
        ({"eps": float("nan")}, "eps must be"),
        ({"shapes": [[3]]}, "1 shapes for 2 in-keys"),
        ({"in_keys": ["observation"], "out_keys": ["a", "b"]}, "1 in-keys and 2 out-keys"),
    ],
)
def test_invalid_arguments(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        VecNorm(**arguments)


def test_unknown_key() -> None:
    env = TransformedEnv(RowsEnv(), VecNorm(["observaton"]))
    with pytest.raises(KeyNotFoundError, match="existing keys: observation"):
        env.output_spec  # noqa: B018
    with pytest.raises(KeyNotFoundError, match="shared_td has no key 'reward'"):
        VecNorm(shared_td=TensorDict(observation=torch.zeros(3, 3)))


def test_statistics_of_another_shape() -> None:
    env = TransformedEnv(RowsEnv(), VecNorm(["observation"], shapes=[[4]]))
    with pytest.raises(ChainError, match=r"have shape \(4,\), the entry has \(3,\)"):
        env.reset()


def test_no_statistics_yet() -> None:
    with pytest.raises(ChainError, match="has no statistics"):
        VecNorm().to_observation_norm()

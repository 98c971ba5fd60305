"""Running statistics of each env, or of a batch."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tensordict import TensorDict

from tdx import (
    Compose,
    EnvCreator,
    ObservationNorm,
    PendulumEnv,
    TransformedEnv,
    Unbounded,
    VecNormV2,
    check_env_specs,
)
from tdx.core.envs import EnvBase
from tdx.foundation.errors import ArgumentError, ChainError, KeyNotFoundError
from tests.transforms.envs import RowsEnv
from tests.transforms.fixed_rollouts import fixed_rollout


def normed(batch_size: tuple[int, ...] = (), **kwargs: Any) -> TransformedEnv:
    norm = VecNormV2(["observation"], ["normal"], decay=1.0, **kwargs)
    return TransformedEnv(RowsEnv(batch_size, endless=True), norm)


def seen(env: EnvBase, steps: int) -> torch.Tensor:
    """Return the observations of a rollout, ``[*B, T, ...]``, float64."""
    rollout = fixed_rollout(env, steps)
    last = rollout["next", "observation"][..., -1:, :]
    return torch.cat((rollout["observation"], last), -2).double()


def test_each_row_has_its_own_statistics() -> None:
    env = normed((3,))
    values = seen(env, 6)
    norm = env.transform
    torch.testing.assert_close(norm.loc["observation"], values.mean(1))
    torch.testing.assert_close(norm.scale["observation"], values.std(1, correction=0).clamp(1e-4))
    assert norm.count["observation"] == 7
    assert env.observation_spec["normal"] == Unbounded((3, 3))


def test_one_set_of_statistics_for_a_batch() -> None:
    env = normed((3,), reduce_batch_dims=True)
    values = seen(env, 6).flatten(0, 1)
    norm = env.transform
    torch.testing.assert_close(norm.loc["observation"], values.mean(0))
    torch.testing.assert_close(norm.scale["observation"], values.std(0, correction=0))
    assert norm.count["observation"] == 21


def test_a_partial_reset_counts_its_rows() -> None:
    env = normed((3,))
    tensordict = env.reset()
    mask = torch.tensor([[True], [False], [True]])
    env.reset(tensordict.set("_reset", mask))
    held = dict(env.transform.named_buffers())["statistics/observation"]
    assert held[2, :, 0].tolist() == [2.0, 1.0, 2.0]
    together = normed((3,), reduce_batch_dims=True)
    together.reset(together.reset().set("_reset", mask))
    assert together.transform.count["observation"] == 5


@pytest.mark.parametrize("reduced", [True, False])
def test_frozen_statistics_do_not_change(reduced: bool) -> None:
    env = normed((2,), reduce_batch_dims=reduced)
    fixed_rollout(env, 3)
    norm = env.transform
    before = {key: value.clone() for key, value in norm.state_dict().items()}
    norm.freeze()
    first = fixed_rollout(env, 3)
    norm.unfreeze().eval()
    again = fixed_rollout(env, 3)
    assert torch.equal(first["normal"], again["normal"])
    assert all(torch.equal(before[key], value) for key, value in norm.state_dict().items())


@pytest.mark.parametrize("decay", [1.0, 0.9])
def test_the_inverse_and_a_fixed_norm(decay: float) -> None:
    norm = VecNormV2(["observation"], ["normal"], decay=decay)
    env = TransformedEnv(PendulumEnv(), norm)
    env.rollout(20)
    norm.freeze()
    rollout = env.rollout(5)
    torch.testing.assert_close(norm.denorm(rollout)["observation"], rollout["observation"])
    fixed = norm.to_observation_norm()
    assert isinstance(fixed, ObservationNorm)
    torch.testing.assert_close(fixed(rollout.clone())["normal"], rollout["normal"])


def test_initial_statistics() -> None:
    norm = VecNormV2(["observation"], decay=0.9)
    env = TransformedEnv(PendulumEnv(), norm)
    env.rollout(20)
    held = norm.state_dict()["statistics/observation"]
    lacking = 1 - 0.9
    shared = TensorDict(
        loc={"observation": held[0] * lacking},
        var={"observation": held[1] * lacking},
        count={"observation": torch.tensor(21)},
    )
    other = VecNormV2(["observation"], decay=0.9, shared_data=shared)
    torch.testing.assert_close(other.loc["observation"], norm.loc["observation"])
    torch.testing.assert_close(other.scale["observation"], norm.scale["observation"])
    with pytest.raises(KeyNotFoundError, match=r"loc\.reward"):
        VecNormV2(["reward"], shared_data=shared)


def test_envs_of_a_creator_share_statistics() -> None:
    create = EnvCreator(normed)
    envs = [create(), create()]
    for env in envs:
        env.reset()
    for env in envs:
        assert isinstance(env, TransformedEnv)
        assert env.transform.count["observation"] == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"decay": 0.0}, "decay must be a number above 0"),
        ({"eps": -1}, "eps must be a number above 0"),
        ({"stateful": False, "reduce_batch_dims": True}, "for statistics in the transform"),
        ({"stateful": False, "shared_data": TensorDict()}, "for statistics in the transform"),
    ],
)
def test_arguments(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        VecNormV2(["observation"], **arguments)


def test_no_statistics_yet() -> None:
    with pytest.raises(ChainError, match="no statistics yet"):
        VecNormV2(["observation"]).to_observation_norm()


# Statistics in the data


@pytest.mark.parametrize("batch_size", [(), (3,)])
def test_statistics_in_the_data_give_the_same_values(batch_size: tuple[int, ...]) -> None:
    wanted = fixed_rollout(normed(batch_size), 6)
    env = normed(batch_size, stateful=False)
    check_env_specs(env)
    found = fixed_rollout(env, 6)
    torch.testing.assert_close(found["next", "normal"], wanted["next", "normal"])
    count = found["next", "_vecnorm_count", "observation"]
    assert (count[..., -1, :] == 7).all()
    assert found["next", "_vecnorm_loc", "observation"].shape == found["observation"].shape
    assert not env.transform.state_dict()


def test_a_reset_without_input_starts_new_statistics_in_the_data() -> None:
    env = normed((3,), stateful=False)
    tensordict = env.rand_step(env.reset())["next"]
    partial = env.reset(tensordict.set("_reset", torch.tensor([[True], [False], [True]])))
    assert partial["_vecnorm_count", "observation"][:, 0].tolist() == [3, 2, 3]
    assert (env.reset()["_vecnorm_count", "observation"] == 1).all()


def test_stored_data_is_mapped_by_its_own_statistics() -> None:
    env = normed(stateful=False)
    stored, norm = fixed_rollout(env, 6), env.transform
    assert isinstance(norm, VecNormV2)
    found = norm(stored.exclude("normal"))
    torch.testing.assert_close(found["normal"], stored["normal"])
    restored = norm.denorm(stored.exclude("observation"))
    torch.testing.assert_close(restored["observation"], stored["observation"])
    for function in (norm, norm.denorm):
        with pytest.raises(NotImplementedError, match="the data has no statistics"):
            function(stored.exclude("_vecnorm_loc"))


@pytest.mark.parametrize("stateful", [True, False])
def test_two_transforms_for_two_keys(stateful: bool) -> None:
    norms = [VecNormV2([key], stateful=stateful) for key in ("observation", "reward")]
    env = TransformedEnv(RowsEnv((3,)), Compose(*norms))
    check_env_specs(env)
    env.rollout(4)

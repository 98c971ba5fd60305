"""Vector envs: partial resets, ended rows and autoreset modes."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv
from tensordict import TensorDictBase

from tdx import EnvBase, RewardSum, TransformedEnv
from tdx.core.plan import plan_of
from tdx.envs.gym import GymEnv, GymWrapper
from tdx.envs.gym.autoreset import RESETS_ROWS, AutoresetMode, create_without_autoreset
from tdx.foundation.errors import EnvError
from tests.envs.gym.mocks import CountEnv
from tests.programs import exhaustive

# Gymnasium 1.0 has no modes: only what tdx creates is reset in rows.
MODES = list(AutoresetMode) if RESETS_ROWS else [AutoresetMode.DISABLED]
with_modes = pytest.mark.skipif(not RESETS_ROWS, reason="this Gymnasium has no autoreset modes")
each_mode = pytest.mark.parametrize("mode", MODES, ids=[mode.name.lower() for mode in MODES])
LENGTHS = [(3,), (2, 4), (5, 1)]


def count_envs(mode: AutoresetMode, kind: type[Any] = SyncVectorEnv, **kwargs: Any) -> GymWrapper:
    # In this mode Gymnasium loses the terminal observation of an env that reuses its array.
    copies = mode is AutoresetMode.SAME_STEP
    makers: list[Any] = [lambda lengths=lengths: CountEnv(lengths, copies) for lengths in LENGTHS]
    if mode is AutoresetMode.DISABLED:
        return GymWrapper(create_without_autoreset(kind, makers, **kwargs))
    return GymWrapper(kind(makers, autoreset_mode=mode, **kwargs))


def reset_rows(env: GymWrapper, current: TensorDictBase, rows: list[bool]) -> TensorDictBase:
    current["_reset"] = torch.tensor(rows).unsqueeze(-1)
    return env.reset(current)


def expected_rows(steps: int) -> torch.Tensor:
    """Return episode and step of each row before each step, ``[3, T, 2]``."""
    table = []
    for lengths in LENGTHS:
        episode, count, row = 0, 0, []
        for _ in range(steps):
            row.append([episode, count])
            count += 1
            if count >= lengths[episode % len(lengths)]:
                episode, count = episode + 1, 0
        table.append(row)
    return torch.tensor(table)


@each_mode
@pytest.mark.parametrize(
    ("kind", "kwargs"),
    [(SyncVectorEnv, {}), (SyncVectorEnv, {"copy": False}), (AsyncVectorEnv, {})],
    ids=["sync", "sync_without_copies", "async"],
)
def test_every_mode_gives_the_same_rollout(
    mode: AutoresetMode, kind: type[Any], kwargs: dict[str, Any]
) -> None:
    with count_envs(mode, kind, **kwargs) as env:
        rollout = env.rollout(12, break_when_any_done=False)
    rows = expected_rows(13)
    assert torch.equal(rollout["observation"], rows[:, :12])
    terminal = rows[:, :12] + torch.tensor([0, 1])
    assert torch.equal(rollout["next", "observation"], terminal)
    assert torch.equal(rollout["next", "reward"].squeeze(-1), terminal[..., 1].float())
    ends = rows[:, 1:, 1] == 0
    assert torch.equal(rollout["next", "done"].squeeze(-1), ends)
    assert torch.equal(rollout["next", "terminated"].squeeze(-1), ends)
    assert not rollout["next", "truncated"].any()


@each_mode
def test_ended_row_does_not_change_until_it_is_reset(mode: AutoresetMode) -> None:
    env = count_envs(mode)
    rollout = env.rollout(9, break_when_any_done=False, break_when_all_done=True)
    assert rollout.shape[1] == 5
    for row, length in enumerate([3, 2, 5]):
        following = rollout[row]["next"]
        assert following["observation"][:, 1].tolist() == [min(i, length) for i in range(1, 6)]
        assert following["observation"][:, 0].tolist() == [0] * 5
        assert following["done"].squeeze(-1).tolist() == [i >= length for i in range(1, 6)]
        assert following["reward"][length:].sum() == 0


@each_mode
def test_running_row_can_be_reset(mode: AutoresetMode) -> None:
    env = count_envs(mode)
    current = env.step_mdp(env.rand_step(env.reset()))
    current = reset_rows(env, current, [False, False, True])
    assert current["observation"].tolist() == [[0, 1], [0, 1], [1, 0]]
    following = env.rand_step(current)["next"]
    assert following["observation"].tolist() == [[0, 2], [0, 2], [1, 1]]


@each_mode
def test_all_rows_can_be_reset_at_any_time(mode: AutoresetMode) -> None:
    env = count_envs(mode)
    env.rollout(3, break_when_any_done=False)
    assert env.reset()["observation"][:, 1].tolist() == [0, 0, 0]
    assert env.rand_step()["next", "observation"][:, 1].tolist() == [1, 1, 1]


def test_all_false_mask_resets_no_row() -> None:
    env = count_envs(AutoresetMode.DISABLED)
    current = env.step_mdp(env.rand_step(env.reset()))
    current = reset_rows(env, current, [False, False, False])
    assert current["observation"][:, 1].tolist() == [1, 1, 1]
    single = GymWrapper(CountEnv())
    current = single.step_mdp(single.rand_step(single.reset()))
    current["_reset"] = torch.tensor([False])
    assert single.reset(current)["observation"].tolist() == [0, 1]


def test_the_mask_is_not_changed() -> None:
    env = count_envs(AutoresetMode.DISABLED)
    current, mask = env.reset(), torch.tensor([[True], [False], [True]])
    current["_reset"] = mask
    env.reset(current)
    assert mask.tolist() == [[True], [False], [True]]


def test_stored_steps_do_not_change_later() -> None:
    env = count_envs(AutoresetMode.DISABLED, copy=False)
    steps = [env.rand_step(env.reset())]
    kept = steps[0].clone()
    for _ in range(3):
        following = env.maybe_reset(env.step_mdp(steps[-1]))
        steps.append(env.rand_step(following))
    assert (steps[0] == kept).all()


@with_modes
def test_seeded_episodes_do_not_depend_on_the_mode() -> None:
    def observed(mode: AutoresetMode) -> torch.Tensor:
        vector = gymnasium.make_vec(
            "CartPole-v1", 3, vectorization_mode="sync", vector_kwargs={"autoreset_mode": mode}
        )
        env = GymWrapper(vector, seed=3)
        torch.manual_seed(0)
        return env.rollout(60, break_when_any_done=False)["observation"]

    first, *others = [observed(mode) for mode in MODES]
    assert all(torch.equal(first, other) for other in others)


@with_modes
def test_the_mode_is_visible() -> None:
    assert count_envs(AutoresetMode.DISABLED).autoreset_mode == "disabled"
    assert "autoreset" not in repr(count_envs(AutoresetMode.DISABLED))
    for mode in (AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP):
        env = count_envs(mode)
        assert env.autoreset_mode == mode.name.lower()
        assert repr(env).endswith(f"autoreset_mode={mode.name.lower()})")
    assert GymEnv("CartPole-v1", num_envs=2).autoreset_mode == "disabled"
    assert GymEnv("CartPole-v1").autoreset_mode == "disabled"


@pytest.mark.skipif(RESETS_ROWS, reason="this Gymnasium resets rows")
def test_vector_env_of_a_user_without_partial_resets_is_reported() -> None:
    env = GymWrapper(SyncVectorEnv([CountEnv, CountEnv]))
    with pytest.raises(EnvError, match="cannot reset only some of them") as caught:
        reset_rows(env, env.reset(), [True, False])
    assert caught.value.hint is not None
    assert "gymnasium>=1.1" in caught.value.hint


@with_modes
def test_vector_env_without_partial_resets_is_reported() -> None:
    vector = gymnasium.make_vec("CartPole-v1", 2, vectorization_mode="vector_entry_point")
    env = GymWrapper(vector, seed=0)
    current = env.reset()
    assert torch.equal(env.reset(seed=0)["observation"], current["observation"])
    with pytest.raises(EnvError) as caught:
        reset_rows(env, current, [True, False])
    assert str(caught.value) == (
        "env CartPole-v1: CartPoleVectorEnv resets rows by itself (next_step) and cannot reset "
        'only some of them (create it with vectorization_mode="sync", or reset all rows at once)'
    )


@with_modes
@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP])
@exhaustive
def test_atari_vector_env(mode: AutoresetMode) -> None:
    pytest.importorskip("ale_py.vector_env")
    import ale_py.vector_env

    vector = ale_py.vector_env.AtariVectorEnv(
        "pong", num_envs=2, autoreset_mode=mode, max_num_frames_per_episode=80
    )
    with GymWrapper(vector, seed=0) as env:
        rollout = env.rollout(30, break_when_any_done=False)
    done = rollout["next", "done"].squeeze(-1)
    assert done.any()
    after = done[:, :-1].nonzero()
    for row, step in after.tolist():
        following = rollout["observation"][row, step + 1]
        assert not torch.equal(following, rollout["next", "observation"][row, step])
    assert np.array_equal(done[0], done[1])


# Rollouts step the envs of the rows themselves


def steps_in_both_ways(env: EnvBase, steps: int) -> list[TensorDictBase]:
    """Return a rollout, steps without resets, and another rollout."""
    env.set_seed(0)
    torch.manual_seed(0)
    parts = [env.rollout(steps, break_when_any_done=False)]
    root = env.step_mdp(parts[-1][..., -1])
    for _ in range(3):
        # Ended rows repeat their values.
        step = env.rand_step(root)
        parts.append(step)
        root = env.step_mdp(step)
    parts.append(env.rollout(9, auto_reset=False, tensordict=root, break_when_any_done=False))
    # The seed is that of the next reset, of some rows here.
    env.set_seed(3)
    root = env.step_mdp(parts[-1][..., -1])
    parts.append(env.rollout(30, auto_reset=False, tensordict=root, break_when_any_done=False))
    return parts


@pytest.mark.parametrize("steps", range(8, 14))
def test_rollouts_and_steps_of_a_vector_env_alternate(steps: int) -> None:
    def make(planned: bool) -> TransformedEnv:
        base = GymEnv("CartPole-v1", num_envs=3, max_episode_steps=11)
        return TransformedEnv(base, RewardSum(), planned=planned)

    assert plan_of(make(True)).rows == "raw"
    ours, theirs = (steps_in_both_ways(make(planned), steps) for planned in (True, False))
    for mine, other in zip(ours, theirs, strict=True):
        assert set(mine.keys(True, True)) == set(other.keys(True, True))
        assert bool((mine == other).all())

"""Several envs in each process of a ``ParallelEnv``."""

from __future__ import annotations

import os
import random
import signal
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from tensordict import TensorDictBase, assert_close

from tdx import (
    ActionSequence,
    CatFrames,
    GymEnv,
    InitTracker,
    RewardSum,
    StepCounter,
    TransformedEnv,
)
from tdx.envs.batched import ParallelEnv, SerialEnv
from tdx.envs.batched.worker_pool import resolve_process_count, split_rows
from tdx.envs.gym import GymWrapper
from tdx.foundation.errors import ArgumentError, EnvError, WorkerError
from tdx.foundation.keys import NestedKey
from tests.envs.batched.conftest import MakeBatch
from tests.envs.batched.test_faults import one_faulty
from tests.envs.mocks import CountingEnv, FaultyEnv, TwoGroupsEnv
from tests.processes import all_ended
from tests.programs import exhaustive


class DrawingEnv(CountingEnv):
    """Env that observes draws of the global generators of torch, NumPy and Python."""

    step_reads: tuple[NestedKey, ...] | None = ()

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        drawn = torch.randint(9, (1,)) + 10 * int(np.random.randint(9)) + 100 * random.randrange(9)
        return super()._step(tensordict).set("observation", drawn)


def steps_of(env: Any, steps: int = 12) -> TensorDictBase:
    """Return single steps, with resets of single rows."""
    env.set_seed(3)
    torch.manual_seed(5)
    current, found = env.reset(), []
    for _ in range(steps):
        done, current = env.step_and_maybe_reset(env.rand_action(current))
        found.append(done)
    return torch.stack(found, env.ndim)


@pytest.mark.parametrize("processes", [1, 2, 9])
@exhaustive
def test_the_number_of_processes_changes_no_value(make_parallel: MakeBatch, processes: int) -> None:
    for make in (TwoGroupsEnv, lambda: GymEnv("CartPole-v1")):
        env = make_parallel(3, make, processes=processes)
        assert len(env.worker_pids) == min(processes, 3)
        assert (steps_of(env) == steps_of(SerialEnv(3, make))).all()


@exhaustive
def test_global_generators_belong_to_an_env(make_parallel: MakeBatch) -> None:
    found = []
    for processes in (1, 2, 3):
        torch.manual_seed(1)
        found.append(steps_of(make_parallel(3, DrawingEnv, processes=processes)))
    assert (found[0] == found[1]).all()
    assert (found[0] == found[2]).all()
    first, second, _ = found[0]["next", "observation"].unbind(0)
    assert not torch.equal(first, second)


@exhaustive
def test_attributes_calls_and_states_are_in_the_order_of_the_envs(make_parallel: MakeBatch) -> None:
    each = [{"stop": 2 + index} for index in range(5)]
    env = make_parallel(5, CountingEnv, create_env_kwargs=each, processes=2)
    assert env.stop == [2, 3, 4, 5, 6]
    assert env.twice(1) == [2] * 5
    env.rollout(2)
    assert [int(steps) for steps in env.state_dict().values()] == [2] * 5
    env.load_state_dict({f"worker{row}.steps": torch.tensor(row) for row in range(5)})
    assert [int(steps) for steps in env.state_dict().values()] == [0, 1, 2, 3, 4]


@exhaustive
def test_errors_name_the_env_in_its_process(make_parallel: MakeBatch) -> None:
    env = make_parallel(2, one_faulty("raise"), processes=1)
    with pytest.raises(WorkerError, match="worker 1 raised ValueError during step: raised on pur"):
        steps_of(env)
    with pytest.raises(WorkerError, match="worker 1 raised ValueError during env construction"):
        make_parallel(2, one_faulty("make-raise"), processes=1)
    env = make_parallel(2, [CountingEnv, UnreadableEnv], processes=1)
    with pytest.raises(WorkerError, match="worker 1 raised ValueError during twice"):
        env.twice(3)
    assert env.rollout(2).shape == (2, 2)


class UnreadableEnv(CountingEnv):
    """Env with a method that raises."""

    def twice(self, value: int, *, plus: int = 0) -> int:
        raise ValueError("no")


def test_a_process_that_is_killed_is_named_by_its_envs(make_parallel: MakeBatch) -> None:
    env = make_parallel(4, lambda: FaultyEnv("none"), processes=2)
    os.kill(env.worker_pids[1], signal.SIGKILL)
    with pytest.raises(WorkerError, match=r"the process of workers . to . was killed by SIGKILL"):
        steps_of(env)
    assert env.is_closed


@exhaustive
def test_chains_around_and_inside(make_parallel: MakeBatch) -> None:
    def inside() -> TransformedEnv:
        return TransformedEnv(GymEnv("CartPole-v1"), StepCounter(4))

    found = []
    for batch in (make_parallel(3, inside, processes=2), SerialEnv(3, inside)):
        env = TransformedEnv(batch, InitTracker())
        env.append_transform(RewardSum()).append_transform(CatFrames(3, -1, ["observation"]))
        found.append(steps_of(env))
    assert_close(*found, rtol=0.0, atol=0.0)


def test_the_number_of_processes_is_checked() -> None:
    assert resolve_process_count(8, 3) == 3
    assert 1 <= resolve_process_count(None, 64) <= max(os.cpu_count() or 1, 1)
    assert split_rows(5, 2) == [range(2), range(2, 5)]
    for wrong in (0, -1, 1.5, True, "2"):
        with pytest.raises(ArgumentError, match="processes must be an integer of at least 1"):
            ParallelEnv(2, CountingEnv, processes=wrong)  # type: ignore[arg-type]


class DyingEnv(gymnasium.Env[Any, Any]):
    """Env that kills its process once, at a given step, and records it in a file."""

    uses_own_generator = True
    observation_space = gymnasium.spaces.Box(-100.0, 100.0, (1,), np.float64)
    action_space = gymnasium.spaces.Discrete(3)

    def __init__(self, marker: str, at: int) -> None:
        self.marker, self.at, self.count = marker, at, 0.0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.count = 0.0
        return np.array([self.np_random.random()]), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.count += 1
        if self.count == self.at and _is_first(Path(self.marker)):
            os.kill(os.getpid(), signal.SIGKILL)
        seen = np.array([self.np_random.random() + float(action)])
        return seen, self.count, self.count >= 20, False, {}


def _is_first(marker: Path) -> bool:
    """Return True in the first process that calls it."""
    try:
        marker.touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


class BreakingEnv(DyingEnv):
    """Env that raises at a given step."""

    uses_own_generator = True

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if self.count + 1 == self.at:
            raise ValueError("the belt slipped")
        return super().step(action)


@exhaustive
def test_a_process_that_dies_ends_the_rollout(make_parallel: MakeBatch, tmp_path: Path) -> None:
    marker = str(tmp_path / "died")
    batch: Any = make_parallel(4, lambda: GymWrapper(DyingEnv(marker, 13)), processes=2)
    env = TransformedEnv(batch, RewardSum())
    pids = batch.worker_pids
    with pytest.raises(WorkerError, match=r"the process of workers . to . was killed by SIGKILL"):
        list(env.iter_rollout(60, chunk_steps=30))
    assert all_ended(pids)
    assert batch.is_closed
    assert env.rollout(3, break_when_any_done=False).shape == (4, 3)


@exhaustive
def test_steps_before_an_error_are_returned(make_parallel: MakeBatch) -> None:
    def make(at: int) -> GymWrapper:
        return GymWrapper(BreakingEnv(os.sep, at))

    stops = [{"at": at} for at in (99, 99, 99, 13)]
    env: Any = make_parallel(4, make, create_env_kwargs=stops, processes=2)
    pids, chunks = env.worker_pids, env.iter_rollout(30, chunk_steps=30)
    assert next(chunks).shape == (4, 12)
    message = "step 12, .*: worker 3 failed during step: step raised ValueError: the belt slipped"
    with pytest.raises(WorkerError, match=message) as caught:
        next(chunks)
    assert isinstance(caught.value.__cause__, EnvError)
    assert env.is_closed
    assert all_ended(pids)


@exhaustive
def test_an_error_of_the_policy_leaves_the_processes(make_parallel: MakeBatch) -> None:
    env: Any = make_parallel(3, lambda: GymEnv("Pendulum-v1"), processes=2)
    missing = ActionSequence(torch.zeros(3, 7, 1))
    chunks = env.iter_rollout(30, missing, chunk_steps=30)
    assert next(chunks).shape == (3, 7)
    with pytest.raises(ArgumentError, match="step 7: the sequence holds 7 actions"):
        next(chunks)
    assert env.rollout(3, break_when_any_done=False).shape == (3, 3)


@exhaustive
def test_full_shared_memory_is_one_sentence(
    make_parallel: MakeBatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    env: Any = make_parallel(2, lambda: GymEnv("Pendulum-v1"), processes=2)
    env.rollout(3, break_when_any_done=False)
    pids = env.worker_pids

    def refuse(tensor: torch.Tensor) -> None:
        raise RuntimeError("unable to allocate shared memory(shm): No space left on device (28)")

    monkeypatch.setattr(torch.Tensor, "share_memory_", refuse)
    with pytest.raises(WorkerError, match=r"[\d,]+ bytes of shared memory .*No space") as caught:
        env.rollout(20_000, break_when_any_done=False)
    assert "/dev/shm" in str(caught.value.hint)
    # The envs are ahead of the rollout.
    assert env.is_closed
    assert all_ended(pids)
    monkeypatch.undo()
    assert env.rollout(3, break_when_any_done=False).shape == (2, 3)

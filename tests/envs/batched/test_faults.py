"""Workers that raise, exit or hang are named, and no process is left behind."""

from __future__ import annotations

import gc
import re
import threading
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from tensordict import TensorDict

from tdx.core.envs import EnvBase
from tdx.core.envs.failures import ENV_ERROR_HINT
from tdx.envs.batched import ParallelEnv
from tdx.envs.gym import GymWrapper
from tdx.foundation.errors import (
    ArgumentError,
    EnvError,
    EnvNotFoundError,
    WorkerError,
    WorkerTimeoutError,
)
from tests.envs.batched.conftest import MakeBatch
from tests.envs.gym.mocks import FailingEnv
from tests.envs.mocks import CountingEnv, FaultyEnv
from tests.processes import (
    all_ended,
    becomes_true,
    open_descriptors,
    shared_memory_files,
)
from tests.programs import exhaustive


def one_faulty(fault: str) -> list[partial[FaultyEnv]]:
    """Return the constructors of a healthy and a faulty env."""
    return [partial(FaultyEnv, "none"), partial(FaultyEnv, fault)]


def failing_gym_env(phase: str) -> GymWrapper:
    return GymWrapper(FailingEnv(phase))


def limit_replies(env: ParallelEnv) -> None:
    """Give workers half a second from now on; they started and created their envs without haste."""
    env._pool.options = replace(env._pool.options, timeout=0.5)


def test_exception_names_its_worker_and_has_its_traceback(make_parallel: MakeBatch) -> None:
    env = make_parallel(2, one_faulty("raise"))
    pids = env.worker_pids
    with pytest.raises(WorkerError) as caught:
        env.rollout(5)
    assert str(caught.value) == (
        f"step 1: worker 1 raised ValueError during step: raised on purpose ({ENV_ERROR_HINT})"
    )
    assert isinstance(caught.value.__cause__, ValueError)
    (note,) = caught.value.__cause__.__notes__
    assert "Traceback" in note
    assert "_go_wrong" in note
    assert env.is_closed
    assert all_ended(pids)


@exhaustive
def test_an_error_of_tdx_in_a_worker_keeps_its_hint(make_parallel: MakeBatch) -> None:
    env = make_parallel(2, partial(failing_gym_env, "step"))
    with pytest.raises(WorkerError) as caught:
        env.rollout(2)
    # Both fail, in any order.
    assert re.fullmatch(
        "worker [01] failed during step: step raised ZeroDivisionError: cannot continue",
        caught.value.message,
    )
    assert caught.value.hint is not None
    assert caught.value.hint.startswith("the error comes from the env")


def test_exception_in_a_reset_names_the_reset(make_parallel: MakeBatch) -> None:
    env = make_parallel(2, one_faulty("reset-raise"))
    pids = env.worker_pids
    with pytest.raises(WorkerError, match="worker 1 raised ValueError during reset"):
        env.reset()
    assert all_ended(pids)


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("exit", "worker 1 exited with code 7 during step"),
        ("kill", r"worker 1 was killed by SIGKILL during step .*memory"),
        ("reset-exit", "worker 1 exited with code 7 during reset"),
    ],
)
@exhaustive
def test_exit_of_a_worker_is_reported_with_its_reason(
    make_parallel: MakeBatch, fault: str, message: str
) -> None:
    env = make_parallel(2, one_faulty(fault))
    pids = env.worker_pids
    with pytest.raises(WorkerError, match=message):
        env.rollout(5)
    assert env.is_closed
    assert all_ended(pids)


@exhaustive
def test_a_hang_in_a_step_ends_with_the_timeout(make_parallel: MakeBatch) -> None:
    # All envs hang: on a busy machine, a healthy one might not reply in time either.
    env = make_parallel(2, partial(FaultyEnv, "hang", 1))
    pids, first = env.worker_pids, env.rand_action(env.reset())
    limit_replies(env)
    with pytest.raises(WorkerTimeoutError, match=r"worker 0 did not respond within 0.5 s during"):
        env.step(first)
    assert all_ended(pids)


def test_a_hang_in_a_reset_names_the_only_env_that_is_reset(make_parallel: MakeBatch) -> None:
    env = make_parallel(2, one_faulty("reset-hang"))
    pids = env.worker_pids
    limit_replies(env)
    with pytest.raises(WorkerTimeoutError, match=r"worker 1 did not respond within 0.5 s during"):
        env.reset(TensorDict({"_reset": torch.tensor([[False], [True]])}, [2]))
    assert all_ended(pids)


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("make-raise", "worker 1 raised ValueError during env construction: raised on purpose"),
        ("make-exit", "worker 1 exited with code 7 during env construction"),
        ("make-kill", "worker 1 was killed by SIGKILL during env construction"),
    ],
)
def test_fault_during_env_construction(make_parallel: MakeBatch, fault: str, message: str) -> None:
    before = shared_memory_files()
    with pytest.raises(WorkerError, match=message):
        make_parallel(2, one_faulty(fault))
    assert shared_memory_files() <= before


def test_hang_during_env_construction(make_parallel: MakeBatch) -> None:
    # The time to start a process does not count; all envs hang, as above.
    with pytest.raises(
        WorkerTimeoutError, match=r"worker 0 did not respond within 0.5 s during env construction"
    ):
        make_parallel(2, partial(FaultyEnv, "make-hang"), worker_timeout=0.5)


def test_construction_error_is_that_of_the_env(make_batch: MakeBatch) -> None:
    def no_such_env() -> EnvBase:
        raise EnvNotFoundError("no env is called Pendulun-v1")

    with pytest.raises(EnvNotFoundError, match="Pendulun"):
        make_batch(2, no_such_env)


def test_fault_in_nested_processes_leaves_no_process(make_parallel: MakeBatch) -> None:
    inner = partial(InnerEnv, 2, one_faulty("exit"))
    env = make_parallel(2, inner, mp_start_method="forkserver")
    pids = [*env.worker_pids, *(pid for pids in env.inner_pids() for pid in pids)]
    assert len(pids) == 6
    with pytest.raises(WorkerError, match=r"worker \d failed during step: worker 1 exited"):
        env.rollout(5)
    assert all_ended(pids)


def test_workers_survive_a_method_that_raises(make_parallel: MakeBatch) -> None:
    env = make_parallel(2, CountingEnv)
    with pytest.raises(
        WorkerError, match="worker 0 raised ValueError during fail: failed on purpose"
    ):
        env.fail()
    assert env.rollout(2).shape == torch.Size([2, 2])


def test_workers_survive_an_attribute_that_cannot_be_pickled(
    make_parallel: MakeBatch,
) -> None:
    env = make_parallel(1, UnsendableEnv)
    with pytest.raises(AttributeError, match="lock"):
        _ = env.guard
    assert env.rollout(2).shape == torch.Size([1, 2])


class InnerEnv(ParallelEnv):
    """Batch that reports the process IDs of its workers through an outer batch."""

    def inner_pids(self) -> list[int]:
        return self.worker_pids


class UnsendableEnv(CountingEnv):
    """Env with an attribute that cannot be pickled."""

    def __init__(self) -> None:
        super().__init__()
        self.guard = threading.Lock()


def test_unpicklable_function_is_rejected(make_parallel: MakeBatch) -> None:
    lock = threading.Lock()

    def locked() -> EnvBase:
        with lock:
            return CountingEnv()

    with pytest.raises(ArgumentError, match="worker 0 cannot be sent to a process") as caught:
        make_parallel(2, locked, mp_start_method="forkserver", processes=1)
    assert "SerialEnv" in str(caught.value.hint)


def test_an_env_that_needs_the_main_process(make_parallel: MakeBatch) -> None:
    def display() -> EnvBase:
        raise EnvError("the display is open in another process", hint=ENV_ERROR_HINT)

    for make in (display, one_faulty("make-raise")):
        with pytest.raises((WorkerError, EnvError)) as caught:
            make_parallel(2, make, processes=1)
        assert "SerialEnv" in str(caught.value.hint)


@exhaustive
def test_close_leaves_no_process_or_shared_memory(make_parallel: MakeBatch) -> None:
    make_parallel(2, CountingEnv).close()
    files, descriptors = shared_memory_files(), open_descriptors()
    for _ in range(3):
        env = make_parallel(2, CountingEnv)
        env.rollout(2)
        pids = env.worker_pids
        env.close()
        assert all_ended(pids)
    del env
    gc.collect()
    assert shared_memory_files() <= files
    assert becomes_true(lambda: open_descriptors() <= descriptors)


def test_processes_end_with_the_object() -> None:
    env: Any = ParallelEnv(2, CountingEnv)
    pids = env.worker_pids
    del env
    gc.collect()
    assert all_ended(pids)


@pytest.mark.parametrize("seconds", [0, -1.0])
def test_the_timeout_is_checked(make_parallel: MakeBatch, seconds: float) -> None:
    with pytest.raises(ArgumentError, match="worker_timeout"):
        make_parallel(1, CountingEnv, worker_timeout=seconds)


def test_the_start_method_is_checked(make_parallel: MakeBatch) -> None:
    with pytest.raises(ArgumentError, match="did you mean forkserver"):
        make_parallel(1, CountingEnv, mp_start_method="forkservr")


def test_a_killed_fork_server_is_reported(
    make_parallel: MakeBatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(process: object) -> None:
        raise EOFError("unexpected EOF")

    monkeypatch.setattr("multiprocessing.context.ForkServerProcess.start", start)
    with pytest.raises(WorkerError, match="the fork server was killed"):
        make_parallel(1, CountingEnv, mp_start_method="forkserver")

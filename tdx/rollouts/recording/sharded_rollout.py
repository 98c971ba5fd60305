"""Roll out all shards of a dump with an engine: retry failed ones, and report the progress."""

from __future__ import annotations

import os
import time
from collections import Counter, deque
from collections.abc import Callable
from contextlib import closing, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tdx.engines import Engine, find_engine, run_tasks
from tdx.foundation.errors import EnvError, TdxError
from tdx.foundation.serialization import Result
from tdx.pipeline import Pipeline
from tdx.rollouts.dump.folder import LockedError, lock_for_writing
from tdx.rollouts.dump.progress import OnChunk, OnShards, ignore_progress, read_progress
from tdx.rollouts.dump.shard_plan import ShardPlan, shard_name
from tdx.rollouts.dump.sharded import ShardedFolder
from tdx.rollouts.recording.request import DumpRequest, choose_goal
from tdx.rollouts.recording.shards import (
    ShardJob,
    complete_shards,
    note_failure,
    open_shards,
    record_shard,
    remove_stale_index,
)

_RETRIES = 2
_POLL_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class ShardFailure(Result):
    """A shard that could not be recorded.

    Args:
        shard: Index of the shard.
        attempts: Number of attempts in this run.
        message: Why the last one failed.
    """

    shard: int
    attempts: int
    message: str


@dataclass(frozen=True, slots=True)
class ShardedRollout(Result):
    """Result of recording shards.

    Args:
        path: Folder of the dump.
        shards: Number of shards of the plan.
        committed: Number of shards that are committed, by this run and earlier ones.
        recorded: Number of shards that this run recorded.
        failures: Shards that this run could not record.
    """

    path: str
    shards: int
    committed: int
    recorded: int
    failures: tuple[ShardFailure, ...]

    @property
    def is_complete(self) -> bool:
        """True if all shards are committed."""
        return self.committed == self.shards


def roll_out_shards(
    request: DumpRequest,
    folder: Path,
    count: int,
    *,
    engine: str = "local",
    workers: int | None = None,
    force: bool = False,
    retries: int = _RETRIES,
    on_progress: OnShards = ignore_progress,
) -> ShardedRollout:
    """Roll out a pipeline into a sharded dump; committed shards are kept.

    The content depends on the request and the number of shards only: not on the engine, the number
    of workers, or failures. The arguments are those of :func:`record_shards`; ``on_progress`` is
    called about twice per second.

    Raises:
        TdxError: The request is invalid or differs from the existing shards, the engine is not
            available, or the folder cannot be written.
    """
    create_engine = _engine_of(engine, folder, request.allow_code, workers)
    with open_shards(request, folder, count, alone=True, force=force) as plan:
        return record_missing_shards(plan, folder, create_engine, retries, on_progress)


def resume_shards(
    folder: Path,
    *,
    engine: str = "local",
    workers: int | None = None,
    retries: int = _RETRIES,
    allow_code: bool = False,
    on_progress: OnShards = ignore_progress,
) -> ShardedRollout:
    """Record the missing shards of a dump, with the pipeline and policy in its plan.

    The arguments are those of :func:`roll_out_shards`.

    Raises:
        TdxError: The dump is damaged, another process records it, the engine is not available, or
            the folder cannot be written.
    """
    create_engine = _engine_of(engine, folder, allow_code, workers)
    plan = ShardPlan.load(folder)
    with lock_for_writing(folder):
        return record_missing_shards(plan, folder, create_engine, retries, on_progress)


def _engine_of(
    name: str, folder: Path, allow_code: bool, workers: int | None
) -> Callable[[], Engine[TdxError | None]]:
    """Return a function that creates the named engine, for the shards in a folder."""
    job = ShardJob(os.path.abspath(folder), allow_code)
    return partial(find_engine(name), job, workers)


def roll_out_shard(
    request: DumpRequest,
    folder: Path,
    count: int,
    shard: int,
    on_chunk: OnChunk = ignore_progress,
) -> ShardedRollout:
    """Record one shard in this process, while other processes may record other ones.

    The request is for all shards together, and the same in every process.

    Raises:
        TdxError: The request is invalid or differs from the existing shards, the env fails, or the
            folder cannot be written.
    """
    with open_shards(request, folder, count, alone=False) as plan:
        target = folder / shard_name(shard)
        recorded = not os.path.lexists(target)
        record_shard(folder, shard, request.allow_code, on_chunk)
        committed = complete_shards(folder).committed
        return ShardedRollout(str(folder), plan.count, len(committed), int(recorded), ())


def record_shards(
    pipeline: Pipeline,
    path: str | Path,
    *,
    shards: int,
    shard: int | None = None,
    steps: int | None = None,
    episodes: int | None = None,
    policy: str | None = None,
    seed: int | None = None,
    keys: tuple[str, ...] | None = None,
    chunk_steps: int | None = None,
    raw: bool = False,
    on: str = "local",
    workers: int | None = None,
    retries: int = _RETRIES,
    force: bool = False,
    allow_code: bool = False,
) -> ShardedRollout:
    """Roll out a pipeline into a sharded dump; see ``tdx rollout --shards``.

    Local processes import the script that calls it: call it below
    ``if __name__ == "__main__":``.

    Args:
        pipeline: Env and chain.
        path: Folder of the dump. Shards that are committed in it are kept.
        shards: Number of shards.
        shard: Shard to record in this process, from 0. ``None``: all missing shards are recorded,
            in other processes.
        steps: Number of steps of each env, of all shards together.
        episodes: Number of episodes of all envs and shards together, instead of ``steps``.
        policy: See :func:`record_dump`; a sequence of actions cannot be divided.
        seed: Root seed. ``None``: that of the existing shards or of the pipeline, or a random one.
        keys: Entries to store. ``None``: all.
        chunk_steps: Number of steps per chunk. ``None``: chosen by their size.
        raw: Whether to store the raw steps of the base env too, for :func:`replay`.
        on: Engine: ``local``, ``ray`` or ``slurm``.
        workers: Number of shards at a time. ``None``: chosen by the engine.
        retries: Number of further attempts for a shard whose env or process fails.
        force: Whether an existing dump may be replaced.
        allow_code: Whether Python objects may be imported.

    Returns:
        How many shards are committed, and which failed.

    Raises:
        TdxError: An argument is invalid or differs from the existing shards, or the folder cannot
            be written.

    Example:
        >>> import tempfile
        >>> from tdx import Pipeline, open_dump, record_shards
        >>> pipeline, folder = Pipeline.of("Pendulum-v1", "RewardSum"), tempfile.mkdtemp()
        >>> for shard in range(2):
        ...     result = record_shards(pipeline, folder, shards=2, shard=shard, steps=100, seed=0)
        >>> result.is_complete, open_dump(folder).data.shape
        (True, torch.Size([100]))
    """
    goal = choose_goal(steps, episodes)
    request = DumpRequest(pipeline, goal, seed, policy, keys, chunk_steps, raw, allow_code)
    folder = Path(path)
    if shard is not None:
        return roll_out_shard(request, folder, shards, shard)
    return roll_out_shards(
        request, folder, shards, engine=on, workers=workers, force=force, retries=retries
    )


def record_missing_shards(
    plan: ShardPlan,
    folder: Path,
    create_engine: Callable[[], Engine[TdxError | None]],
    retries: int,
    on_progress: OnShards,
    on_shard: Callable[[int], object] = ignore_progress,
) -> ShardedRollout:
    """Record the missing shards of a plan; ``on_progress`` is called about twice per second.

    Raises an error if the folder, the pipeline or this installation is not fit for any shard.
    """
    remove_stale_index(folder)
    # Refuses to add to shards that were changed.
    known = {shard.shard for shard in ShardedFolder(folder).shards}
    pending = deque(shard for shard in range(plan.count) if shard not in known)
    attempts: Counter[int] = Counter()
    failures: list[ShardFailure] = []
    fatal: TdxError | None = None
    recorded, reported = 0, float("-inf")

    def report() -> None:
        nonlocal reported
        if time.monotonic() - reported >= _POLL_SECONDS:
            reported = time.monotonic()
            on_progress(read_progress(folder, plan))

    # The engine is created only for a shard that is missing, and closed after an interrupt too.
    with (
        closing(run_tasks(create_engine(), pending, report))
        if pending
        else nullcontext(()) as results
    ):
        for shard, error in results:
            attempts[shard] += 1
            if error is None:
                on_shard(shard)
                recorded += 1
            elif isinstance(error, LockedError):
                # A process of a killed driver, such as a job of Slurm, still records it.
                attempts[shard] -= 1
                pending.append(shard)
            elif not isinstance(error, EnvError):
                # Every other shard would fail too.
                fatal = fatal or error
            elif attempts[shard] <= retries:
                pending.append(shard)
            else:
                note_failure(folder, shard, str(error))
                failures.append(ShardFailure(shard, attempts[shard], str(error)))
            if fatal is not None:
                pending.clear()
    if fatal is not None:
        raise fatal
    committed = complete_shards(folder).committed
    failures.sort(key=lambda failure: failure.shard)
    return ShardedRollout(str(folder), plan.count, len(committed), recorded, tuple(failures))

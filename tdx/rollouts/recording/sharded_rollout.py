"""Roll out all shards of a dump with an engine: retry failed ones, and report the progress."""

from __future__ import annotations

import os
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tdx.engines import Engine, find_engine
from tdx.foundation.errors import ArgumentError, EnvError, TdxError
from tdx.foundation.serialization import Result
from tdx.pipeline import Pipeline
from tdx.rollouts.dump.folder import LockedError, lock_for_writing
from tdx.rollouts.dump.manifest import Goal
from tdx.rollouts.dump.progress import OnChunk, OnShards, ignore_progress, read_progress
from tdx.rollouts.dump.shard_plan import ShardPlan, shard_name
from tdx.rollouts.dump.sharded import ShardedFolder
from tdx.rollouts.recording.request import DumpRequest
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
    of workers, or failures.

    Args:
        request: What to roll out, all shards together.
        folder: Folder of the dump.
        count: Number of shards.
        engine: ``local``, ``ray`` or ``slurm``.
        workers: Number of shards at a time. ``None``: chosen by the engine.
        force: Whether an existing dump may be replaced.
        retries: Number of further attempts for a shard whose env or process fails.
        on_progress: Called about twice per second.

    Raises:
        TdxError: The request is invalid or differs from the existing shards, the engine is not
            available, or the folder cannot be written.
    """
    create_engine = _engine_of(engine, folder, request.allow_code, workers)
    with open_shards(request, folder, count, alone=True, force=force) as plan:
        return ShardRun(plan, folder, create_engine, retries, on_progress).finish()


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

    Args:
        folder: Folder of the dump.
        engine: ``local``, ``ray`` or ``slurm``.
        workers: Number of shards at a time. ``None``: chosen by the engine.
        retries: Number of further attempts for a shard whose env or process fails.
        allow_code: Whether Python objects may be imported.
        on_progress: Called about twice per second.

    Raises:
        TdxError: The dump is damaged, another process records it, the engine is not available, or
            the folder cannot be written.
    """
    create_engine = _engine_of(engine, folder, allow_code, workers)
    plan = ShardPlan.load(folder)
    with lock_for_writing(folder):
        return ShardRun(plan, folder, create_engine, retries, on_progress).finish()


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

    Args:
        request: What to roll out, all shards together; the same in every process.
        folder: Folder of the dump.
        count: Number of shards.
        shard: Index of the shard.
        on_chunk: Called after each chunk.

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
    if steps is not None and episodes is not None:
        raise ArgumentError("steps and episodes are both given", hint="give one of them")
    goal = None if steps is None and episodes is None else Goal(steps, episodes)
    request = DumpRequest(pipeline, goal, seed, policy, keys, chunk_steps, raw, allow_code)
    folder = Path(path)
    if shard is not None:
        return roll_out_shard(request, folder, shards, shard)
    return roll_out_shards(
        request, folder, shards, engine=on, workers=workers, force=force, retries=retries
    )


class ShardRun:
    """Records the missing shards of a plan.

    Args:
        plan: The plan.
        folder: Folder of the dump.
        create_engine: Creates the engine.
        retries: Number of further attempts for a shard whose env or process fails.
        on_progress: Called about twice per second.
        on_shard: Called when a shard is recorded.
    """

    def __init__(
        self,
        plan: ShardPlan,
        folder: Path,
        create_engine: Callable[[], Engine[TdxError | None]],
        retries: int,
        on_progress: OnShards,
        on_shard: Callable[[int], None] = ignore_progress,
    ) -> None:
        self._plan, self._folder, self._retries = plan, folder, retries
        self._create_engine = create_engine
        self._on_progress, self._on_shard = on_progress, on_shard
        remove_stale_index(folder)
        # Refuses to add to shards that were changed.
        committed = ShardedFolder(folder).shards
        missing = set(range(plan.count)) - {each.shard for each in committed}
        self._pending = deque(sorted(missing))
        self._attempts: Counter[int] = Counter()
        self._failures: dict[int, TdxError] = {}
        self._fatal: TdxError | None = None
        self._running = self._recorded = 0

    def finish(self) -> ShardedRollout:
        """Record them, and return the result."""
        if self._pending:
            engine = self._create_engine()
            try:
                self._run(engine)
            finally:
                engine.close()
        if self._fatal is not None:
            raise self._fatal
        committed = complete_shards(self._folder).committed
        failures = tuple(
            ShardFailure(shard, self._attempts[shard], str(error))
            for shard, error in sorted(self._failures.items())
        )
        return ShardedRollout(
            str(self._folder), self._plan.count, len(committed), self._recorded, failures
        )

    def _run(self, engine: Engine[TdxError | None]) -> None:
        reported = float("-inf")
        while self._running or (self._pending and self._fatal is None):
            free = len(self._pending) if engine.slots is None else engine.slots - self._running
            if self._fatal is None and self._pending and free > 0:
                shards = [self._pending.popleft() for _ in range(min(free, len(self._pending)))]
                self._attempts.update(shards)
                engine.submit(shards)
                self._running += len(shards)
            for shard, error in engine.collect(_POLL_SECONDS):
                self._running -= 1
                self._add(shard, error)
            if time.monotonic() - reported >= _POLL_SECONDS:
                reported = time.monotonic()
                self._on_progress(read_progress(self._folder, self._plan))

    def _add(self, shard: int, error: TdxError | None) -> None:
        if error is None:
            self._on_shard(shard)
            self._recorded += 1
        elif isinstance(error, LockedError):
            # A process of a killed driver, such as a job of Slurm, still records it.
            self._attempts[shard] -= 1
            self._pending.append(shard)
        elif not isinstance(error, EnvError):
            # The folder, the pipeline or this installation: every other shard would fail too.
            self._fatal = self._fatal or error
        elif self._attempts[shard] <= self._retries:
            self._pending.append(shard)
        else:
            note_failure(self._folder, shard, str(error))
            self._failures[shard] = error

"""Progress of a dump that this or another process records."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tdx.foundation.container import Container
from tdx.foundation.errors import StorageError
from tdx.foundation.serialization import Result
from tdx.rollouts.dump.folder import LockedError, lock_for_writing, report_unreadable
from tdx.rollouts.dump.manifest import Goal, Manifest
from tdx.rollouts.dump.shard_plan import ShardPlan, is_sharded, list_shards, shard_name


@dataclass(frozen=True, slots=True)
class Progress:
    """Progress of a rollout.

    Args:
        steps: Number of steps of each env so far.
        episodes: Number of episodes that ended so far.
        goal: Length of the whole rollout.
        new_steps: Number of steps since the rollout was started or resumed.
    """

    steps: int
    episodes: int
    goal: Goal
    new_steps: int


@dataclass(frozen=True, slots=True)
class ShardProgress(Result):
    """State of the shards of a dump.

    Args:
        shards: Number of shards of the plan.
        committed: Number of committed shards.
        running: Number of shards that are being recorded.
        failed: Number of shards whose last attempt failed.
        steps: Number of steps of each env in all of them; for a goal in episodes, in the running
            shards only.
        goal: Length of the whole rollout.
    """

    shards: int
    committed: int
    running: int
    failed: int
    steps: int
    goal: Goal

    @property
    def is_complete(self) -> bool:
        """True if all shards are committed."""
        return self.committed == self.shards


OnChunk = Callable[[Progress], None]
OnShards = Callable[[ShardProgress], None]


def ignore_progress(*progress: object) -> None:
    """Do nothing: the default of every progress callback."""


def read_progress(folder: Path, plan: ShardPlan) -> ShardProgress:
    """Return how far the shards of a dump are, without reading committed ones.

    Raises:
        StorageError: The folder cannot be read.
    """
    with report_unreadable(folder), Container.open(folder) as root:
        listing = list_shards(root, plan.count)
    steps = sum(plan.goal(shard).steps or 0 for shard in listing.committed)
    running = []
    for shard in listing.parts:
        part = folder / f"{shard_name(shard)}.part"
        try:
            with lock_for_writing(part, shared=True):
                continue  # Its process has ended.
        except LockedError:
            running.append(shard)
        except OSError:
            continue
        with suppress(StorageError, OSError):
            steps += Manifest.load(part).steps
    failed = set(listing.failures) - set(listing.committed) - set(running)
    return ShardProgress(
        plan.count,
        len(listing.committed),
        len(running),
        len(failed),
        steps,
        plan.manifest.goal,
    )


def follow_dump(path: str | Path, seconds: float = 1.0) -> Iterator[Progress | ShardProgress]:
    """Yield the progress of a dump that other processes record, until it is complete.

    Args:
        path: Folder of the dump.
        seconds: Time between two readings.

    Raises:
        StorageError: The dump is missing or damaged.
    """
    folder = Path(path)
    if is_sharded(folder):
        plan = ShardPlan.load(folder)
        while not (shards := read_progress(folder, plan)).is_complete:
            yield shards
            time.sleep(seconds)
        yield shards
        return
    before: int | None = None
    while True:
        manifest = Manifest.load(folder)
        before = manifest.steps if before is None else before
        steps, episodes = manifest.steps, len(manifest.episodes)
        yield Progress(steps, episodes, manifest.goal, steps - before)
        if manifest.complete:
            return
        time.sleep(seconds)

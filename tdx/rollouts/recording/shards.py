"""Record the shards of a dump: agree on the plan, record one shard, and complete the dump.

Several processes may record different shards of one folder at the same time. Each shard is written
in ``shards/NNNNN.part``, which its process locks, and is committed by renaming that folder.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch

from tdx.core import TransformedEnv
from tdx.foundation.container import Container, make_folders
from tdx.foundation.errors import ArgumentError, EnvError, StorageError, TdxError, summarize_error
from tdx.foundation.files import atomic_folder, remove_path, report_write_errors
from tdx.foundation.folders import sync_path
from tdx.foundation.generators import preserved_generators
from tdx.pipeline import check_arguments, read_pipeline, write_pipeline
from tdx.rollouts.dump.folder import (
    MANIFEST,
    SHARD_INDEX,
    SHARDS,
    LockedError,
    list_temporary,
    lock_for_writing,
    remove_leftovers,
    report_unreadable,
)
from tdx.rollouts.dump.manifest import Manifest, package_versions
from tdx.rollouts.dump.progress import OnChunk, ignore_progress
from tdx.rollouts.dump.shard_plan import (
    MAX_SHARDS,
    ShardListing,
    ShardPlan,
    ShardSummary,
    is_sharded,
    list_shards,
    read_shard_index,
    shard_name,
    write_shard_index,
)
from tdx.rollouts.dump.track import Track
from tdx.rollouts.dump.writing import DumpWriter, check_free, has_dump, write_policy
from tdx.rollouts.policies.policy import NamedPolicy, load_recorded_policy
from tdx.rollouts.recording.checkpoint import Checkpointer
from tdx.rollouts.recording.raw_envs import RecordingEnv
from tdx.rollouts.recording.request import (
    DumpRequest,
    build_seeded_env,
    create_manifest,
    prepare_dump,
)
from tdx.rollouts.recording.rollout import stream_rollout

_RERUN = "make room, then run the same command again: it records only missing shards"
_OTHER = "repeat the first command exactly, name a new folder, or replace all shards with --force"
_NAMES = {
    "shards": "number of shards",
    "seed": "seed",
    "goal": "length",
    "policy": "policy",
    "keys": "entries (--keys)",
    "chunk_steps": "chunk size",
    "pipeline": "pipeline",
    "keeps_raw": "raw steps (--raw)",
}
"""Fields of a plan, and their names in error messages, in the order of comparison."""
_LOCK_SECONDS = 10.0
"""How long to wait for the process of a killed driver that records the same shard."""
_LOCK_INTERVAL_SECONDS = 0.1


# The plan


@contextmanager
def open_shards(
    request: DumpRequest, folder: Path, count: int, *, alone: bool, force: bool = False
) -> Iterator[ShardPlan]:
    """Create the plan of a sharded dump, or compare the request with the existing plan.

    The folder is locked until the block ends. If ``alone``, no other process may record shards
    then.
    """
    if not 1 <= count <= MAX_SHARDS:
        raise ArgumentError(f"{count:,} shards are out of range", hint=f"use 1 to {MAX_SHARDS:,}")
    exists = has_dump(folder) and is_sharded(folder)
    if force or not exists:
        check_free(folder, force, first=SHARDS)
        existing = None
    else:
        existing = ShardPlan.load(folder)
    plan, policy = _prepare_plan(request, count, existing)
    with report_write_errors(folder, full_hint=_RERUN):
        if force and has_dump(folder):
            with lock_for_writing(folder), atomic_folder(os.path.abspath(folder)) as part:
                (part / SHARDS).mkdir()
                with Container.open(part) as root:
                    write_policy(root, policy.file_copy)
                    plan.save(root)
        else:
            make_folders(folder / SHARDS)
        with lock_for_writing(folder, shared=not alone) as root:
            with _exclusive(root):
                if has_dump(folder):
                    created = ShardPlan.read(root)
                    if existing is None and not force:
                        # Another process has just chosen the seed.
                        plan, _ = _prepare_plan(request, count, created)
                    # Shards may differ from the existing ones in nothing but their seed.
                    one, other = created.header(), plan.header()
                    _check_versions(one["versions"], other["versions"], folder)
                    for field, name in _NAMES.items():
                        if one[field] != other[field]:
                            is_number = field in ("shards", "seed", "chunk_steps")
                            numbers = f": {one[field]}, not {other[field]}" if is_number else ""
                            raise ArgumentError(
                                f"the shards in {folder} have another {name}{numbers}", hint=_OTHER
                            )
                    if one != other:
                        raise ArgumentError(
                            f"the shards in {folder} have other specs than this env", hint=_OTHER
                        )
                else:
                    root.discard(list_temporary(root))
                    write_policy(root, policy.file_copy)
                    plan.save(root)
            yield plan


def _prepare_plan(
    request: DumpRequest, count: int, existing: ShardPlan | None
) -> tuple[ShardPlan, NamedPolicy]:
    # Each shard reads the pipeline from the plan, where it is data of a file.
    planned = read_pipeline(write_pipeline(request.pipeline), request.pipeline.file or MANIFEST)
    for error in check_arguments(planned, request.allow_code):
        raise error
    seed = request.seed
    if seed is None and request.pipeline.env.seed is None and existing is not None:
        seed = existing.manifest.seed
    with build_seeded_env(request.pipeline, seed, request.allow_code) as (env, seed):
        policy, manifest = prepare_dump(request, env, seed)
        planned_flags = None if existing is None else existing.manifest.flags
        if planned_flags is not None and planned_flags.fits(env):
            manifest.flags = planned_flags
    if policy.steps is not None:
        raise ArgumentError(
            f"the actions of {policy.name} cannot be divided among shards",
            hint="roll out without --shards, or use another policy",
        )
    goal = manifest.goal
    if (goal.steps or goal.episodes or 0) < count:
        raise ArgumentError(
            f"{goal} cannot be divided among {count:,} shards", hint="use fewer shards"
        )
    return ShardPlan(manifest, count), policy


@contextmanager
def _exclusive(root: Container) -> Iterator[None]:
    """Wait until no other process creates or completes the dump."""
    with root.subfolder(SHARDS) as inner:
        inner.lock(wait=True)
        yield


def _check_versions(recorded: dict[str, str], found: dict[str, str], folder: Path) -> None:
    for name in sorted(recorded.keys() | found.keys()):
        one, other = recorded.get(name), found.get(name)
        if one != other:
            raise ArgumentError(
                f"{folder} is recorded with {name} {one}, and this process has {other}",
                hint="use the same versions for all shards, or name a new folder",
            )


# One shard


@dataclass(frozen=True, slots=True)
class ShardJob:
    """Records shards of a dump whose plan exists; it can be sent to other processes."""

    noun: ClassVar[str] = "shard"
    folder: str
    allow_code: bool = False

    @property
    def log_folder(self) -> Path:
        """Folder for the logs of Slurm, next to the dump."""
        folder = Path(self.folder)
        return folder.with_name(f"{folder.name}-slurm")

    def __call__(self, shard: int, /) -> TdxError | None:
        """Record a shard, and return the error if that fails."""
        try:
            record_shard(Path(self.folder), shard, self.allow_code)
        except TdxError as error:
            return error
        except (Exception, SystemExit) as error:
            return EnvError(summarize_error(error), hint="roll out without --shards to debug it")
        return None


def record_shard(
    folder: Path, shard: int, allow_code: bool = False, on_chunk: OnChunk = ignore_progress
) -> None:
    """Record a shard of a dump whose plan exists, unless it is committed.

    A process that would record other steps is refused: other versions of packages, or another env.
    """
    with report_unreadable(folder), Container.open(folder) as root:
        plan = ShardPlan.read(root)
        if not 0 <= shard < plan.count:
            raise ArgumentError(
                f"shard {shard} does not exist: there are {plan.count}",
                hint=f"number them from 0 to {plan.count - 1}",
            )
        if shard in list_shards(root, plan.count).committed:
            return
    manifest = plan.shard_manifest(shard)
    _check_versions(plan.manifest.versions, package_versions(), folder)
    pipeline = read_pipeline(manifest.pipeline, str(folder / MANIFEST))
    try:
        with (
            _reproducible(manifest.seed),
            build_seeded_env(pipeline, manifest.seed, allow_code) as (env, _),
        ):
            whole = plan.manifest
            policy = load_recorded_policy(
                whole.policy, whole.policy_sha256, folder, env, allow_code=allow_code
            )
            _check_env(env, manifest, folder)
            if manifest.keeps_raw:
                env.base_env = RecordingEnv(env.base_env)
            _write_shard(env, policy, manifest, folder / shard_name(shard), on_chunk)
    except TdxError as error:
        note_failure(folder, shard, str(error))
        raise
    except Exception as error:
        note_failure(folder, shard, summarize_error(error))
        raise
    with suppress(OSError), Container.open(folder) as root:
        root.remove(f"{shard_name(shard)}.failed")


def note_failure(folder: Path, shard: int, message: str) -> None:
    """Record that the last attempt of a shard failed, for ``tdx show``."""
    with suppress(OSError), Container.open(folder) as root:
        root.replace(f"{shard_name(shard)}.failed", f"{message}\n", sync=False)


def _check_env(env: TransformedEnv, manifest: Manifest, folder: Path) -> None:
    """Refuse an env with other specs than the one that the plan was made with."""
    found = create_manifest(
        env,
        read_pipeline(manifest.pipeline, str(folder / MANIFEST)),
        manifest.goal,
        seed=manifest.seed,
        policy=manifest.policy,
        policy_sha256=manifest.policy_sha256,
        chunk_steps=manifest.chunk_steps,
        keys=manifest.keys,
        keeps_raw=manifest.keeps_raw,
    )
    if manifest.flags is not None and manifest.flags.fits(env):
        found.flags = manifest.flags
    if found.header() != manifest.header():
        raise StorageError(f"the shards in {folder} have other specs than this env", hint=_OTHER)


def _write_shard(
    env: TransformedEnv, policy: NamedPolicy, manifest: Manifest, target: Path, on_chunk: OnChunk
) -> None:
    part = target.with_name(f"{target.name}.part")
    with report_write_errors(target, full_hint=_RERUN), _lock_part(part) as root:
        if os.path.lexists(target):
            _remove_part(part)
            return
        try:
            for path in part.iterdir():
                remove_path(path)
            manifest.save_header(root, manifest.start())
            with DumpWriter(root, manifest, manifest.start(), _RERUN) as writer:
                checkpointer = Checkpointer(env, policy.is_code)
                stream_rollout(env, policy, writer, checkpointer, None, on_chunk, can_resume=False)
        except BaseException:
            _remove_part(part)
            raise
        os.rename(part, target)
        try:
            sync_path(target.parent)
        except OSError:
            # Otherwise the next run would take it for committed.
            with suppress(OSError):
                os.rename(target, part)
                _remove_part(part)
            raise


@contextmanager
def _lock_part(part: Path) -> Iterator[Container]:
    """Create and lock the folder of an uncommitted shard."""
    with ExitStack() as stack:
        deadline = time.monotonic() + _LOCK_SECONDS
        while True:
            try:
                part.mkdir(exist_ok=True)
                root = stack.enter_context(lock_for_writing(part))
                break
            except (LockedError, FileNotFoundError):
                if time.monotonic() >= deadline:
                    raise
            time.sleep(_LOCK_INTERVAL_SECONDS)
        yield root


def _remove_part(part: Path) -> None:
    with suppress(OSError):
        remove_path(part)


@contextmanager
def _reproducible(seed: int) -> Iterator[None]:
    """Give a shard the same threads and global random numbers in every process."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with preserved_generators():
            np.random.seed(seed)
            random.seed(seed)
            yield
    finally:
        torch.set_num_threads(threads)


# The whole dump


def remove_stale_index(folder: Path) -> None:
    """Remove the index of all shards if one of them is missing, so that it is recorded again."""
    with report_write_errors(folder, full_hint=_RERUN), Container.open(folder) as root:
        plan = ShardPlan.read(root)
        with _exclusive(root):
            listing = list_shards(root, plan.count)
            if len(listing.committed) < plan.count:
                with suppress(FileNotFoundError):
                    root.remove(SHARD_INDEX, sync=True)


def complete_shards(folder: Path) -> ShardListing:
    """Write the index of all shards if every one is committed; return the shards in the folder."""
    with report_write_errors(folder, full_hint=_RERUN), Container.open(folder) as root:
        plan = ShardPlan.read(root)
        with _exclusive(root):
            listing = list_shards(root, plan.count)
            if len(listing.committed) == plan.count and read_shard_index(root, plan) is None:
                summaries: list[ShardSummary] = []
                tracks: list[Track] = []
                for shard in range(plan.count):
                    manifest, end = plan.read_shard(root, shard)
                    found = [track for track, _ in manifest.tracks]
                    tracks = tracks or found
                    if found != tracks:
                        raise StorageError(
                            f"{folder / shard_name(shard)} has other entries than {shard_name(0)}",
                            hint="name the entries that every shard has: --keys",
                        )
                    summaries.append(ShardSummary.of(shard, manifest, end))
                write_shard_index(root, plan, tracks, summaries)
                remove_leftovers(root, None)
    return listing

"""Record the shards of a dump at a URL: each process uploads what it records."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import ClassVar

from tdx.engines import find_engine
from tdx.foundation.errors import StorageError, TdxError, WorkerError, summarize_error
from tdx.rollouts.dump.folder import INDEX, MANIFEST, SHARD_INDEX, SHARDS
from tdx.rollouts.dump.progress import OnShards, ignore_progress
from tdx.rollouts.dump.remote import RemoteDump, list_shard_files
from tdx.rollouts.dump.shard_plan import shard_name
from tdx.rollouts.recording.request import DumpRequest
from tdx.rollouts.recording.sharded_rollout import ShardedRollout, record_missing_shards
from tdx.rollouts.recording.shards import ShardJob, open_shards


@dataclass(frozen=True, slots=True)
class RemoteShardJob:
    """Records shards in a temporary folder, and uploads them; it can be sent to other processes.

    Two processes that record the same shard write the same files.
    """

    noun: ClassVar[str] = "shard"
    url: str  # of the dump, which has the plan
    allow_code: bool = False

    @property
    def log_folder(self) -> Path:
        """Folder for the logs of Slurm, in the current one."""
        return Path.cwd() / "tdx-rollout-slurm"

    def __call__(self, shard: int, /) -> TdxError | None:
        """Record and upload a shard, and return the error if that fails."""
        try:
            remote = RemoteDump(self.url)
            with tempfile.TemporaryDirectory(prefix="tdx-") as place:
                folder = Path(place, "dump")
                # The plan and the policy.
                files = remote.list_files()
                remote.download(
                    {
                        name: n
                        for name, n in files.items()
                        if "/" not in name and name != SHARD_INDEX
                    },
                    folder,
                )
                (folder / SHARDS).mkdir()
                error = ShardJob(str(folder), self.allow_code)(shard)
                if error is None:
                    remote.upload(folder, list_shard_files(folder, shard))
                return error
        except StorageError as error:
            # The network may work again.
            return WorkerError(str(error), hint=error.hint)
        except TdxError as error:
            return error
        except Exception as error:
            return WorkerError(summarize_error(error), hint="run the same command again")


@contextmanager
def roll_out_to_url(
    request: DumpRequest,
    url: str,
    count: int,
    *,
    engine: str = "local",
    workers: int | None = None,
    retries: int = 2,
    on_progress: OnShards = ignore_progress,
) -> Iterator[tuple[ShardedRollout, Path]]:
    """Roll out a pipeline into a sharded dump at a URL; committed shards are kept.

    The arguments and files are those of :func:`roll_out_shards`; a shard is also tried again after
    an upload that fails. Nothing is locked: two runs with the same request write the same files.

    Yields:
        The result, and a temporary folder with the plan, the manifests and the indexes.

    Raises:
        TdxError: The request is invalid or differs from the existing shards, the engine is not
            available, or the URL cannot be written.
    """
    create_engine = partial(find_engine(engine), RemoteShardJob(url, request.allow_code), workers)
    remote = RemoteDump(url)
    with tempfile.TemporaryDirectory(prefix="tdx-") as place:
        folder = Path(place, "dump")
        sizes = remote.list_files()
        if MANIFEST in sizes:
            remote.download({name: n for name, n in sizes.items() if _is_metadata(name)}, folder)
            (folder / SHARDS).mkdir(exist_ok=True)
        elif sizes:
            raise StorageError(f"{url} has files and is not a dump", hint="name a new folder")

        def add_shard(shard: int) -> None:
            listed = remote.list_files(shard_name(shard))
            remote.download({name: n for name, n in listed.items() if _is_metadata(name)}, folder)

        with open_shards(request, folder, count, alone=True) as plan:
            if MANIFEST not in sizes:
                policies = {path.name for path in folder.iterdir() if path.is_file()} - {MANIFEST}
                remote.upload(folder, [*sorted(policies), MANIFEST])
            result = record_missing_shards(
                plan, folder, create_engine, retries, on_progress, add_shard
            )
            if result.is_complete:
                remote.upload(folder, [SHARD_INDEX])
        yield replace(result, path=url), folder


def _is_metadata(name: str) -> bool:
    """True if opening the dump without its steps needs a file."""
    *folders, last = name.split("/")
    return not folders or (len(folders) == 2 and last in (MANIFEST, INDEX))

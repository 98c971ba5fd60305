"""Compare a dump with its manifest: files, checksums, episodes, and specs; results of a repair."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from hashlib import sha256
from math import prod
from pathlib import Path
from typing import ClassVar, Literal

import torch

from tdx.compare.values import Tolerance, compare_tensors
from tdx.foundation.container import Container, replaced_error
from tdx.foundation.errors import TdxError
from tdx.foundation.keys import format_key, split_key
from tdx.foundation.serialization import Entries, Entry, Result
from tdx.rollouts.dump.entries import Parts, describe_violation
from tdx.rollouts.dump.episodes import EpisodeIndex, EpisodeKeys
from tdx.rollouts.dump.folder import (
    DATA,
    INDEX,
    MANIFEST,
    POLICY_COPIES,
    read_dump_folder,
    read_state,
)
from tdx.rollouts.dump.manifest import Manifest, load_manifest
from tdx.rollouts.dump.progress import ignore_progress
from tdx.rollouts.dump.shard_plan import is_sharded, shard_name
from tdx.rollouts.dump.sharded import ShardedFolder
from tdx.rollouts.dump.track import Track

BLOCK = 2**23
"""Number of bytes that are read at a time."""
_ROUNDING = Tolerance(1e-6, 1e-6)
"""Difference of sums that were added in another order."""
NO_BYTES = "00000000"
"""Checksum of an empty block."""
Kind = Literal["missing", "short", "checksum", "spec", "episodes"]


@dataclass(frozen=True, slots=True)
class Problem(Result):
    """A part of a dump that differs from its manifest.

    Args:
        kind: Kind of the problem.
        file: File that has it.
        chunk: Index of the chunk, from 0.
        message: Description for the user.
        where: Field of the manifest or the index that the file differs from, such as
            ``chunks.jsonl[3].crc32[0]`` in the line of chunk 3.
    """

    json_entries: ClassVar[Entries] = (
        Entry("problem", "kind"),
        "file",
        "chunk",
        "message",
        "where",
    )

    kind: Kind
    file: str
    chunk: int | None
    message: str
    where: str


@dataclass(frozen=True, slots=True)
class Verification(Result):
    """Result of a verification.

    Args:
        path: Folder of the dump.
        chunks: Number of chunks that were read.
        size: Number of bytes that were read.
        complete: Whether the rollout reached its goal.
        source: Dump that was replayed, if it is a replay.
        problems: All problems.
    """

    json_entries: ClassVar[Entries] = (
        *("path", "chunks", Entry("bytes", "size"), "complete", "problems"),
    )

    path: str
    chunks: int
    size: int
    complete: bool
    source: str | None
    problems: tuple[Problem, ...]

    @property
    def is_fine(self) -> bool:
        """True if there are no problems."""
        return not self.problems


OnFile = Callable[[str, int, int], None]
"""Callback: the file that is read next, the number of finished files and of all files."""


@dataclass(frozen=True, slots=True)
class Repair(Result):
    """What a repair kept and lost.

    Args:
        steps: Number of steps of each env that remain.
        chunks: Number of chunks that remain.
        episodes: Number of ended episodes that remain.
        lost_steps: Number of steps that were cut off.
        lost_chunks: Number of chunks that were cut off.
        lost_episodes: Number of ended episodes that were cut off.
        is_exact: False if the index is so damaged that more than these may be lost.
        lost_shards: Damaged shards, which were set aside, and missing ones.
        set_aside: Where the replaced files are kept, relative to the dump's folder.
        rewritten: Files that were missing and follow from the others.
        verification: Result of verifying the repaired dump.
    """

    json_entries: ClassVar[Entries] = (
        *(Entry("path", "verification.path"), "steps", "chunks", "episodes", "lost_steps"),
        *("lost_chunks", "lost_episodes", "is_exact", "lost_shards", "set_aside", "rewritten"),
        "verification",
    )

    steps: int
    chunks: int
    episodes: int
    lost_steps: int
    lost_chunks: int
    lost_episodes: int
    is_exact: bool
    lost_shards: tuple[int, ...]
    set_aside: tuple[str, ...]
    rewritten: tuple[str, ...]
    verification: Verification

    @property
    def is_unchanged(self) -> bool:
        """True if there was nothing to repair."""
        return not (self.set_aside or self.rewritten)


def verify(path: str | Path, on_file: OnFile = ignore_progress) -> Verification:
    """Read a whole dump and compare it with its manifest, in constant memory.

    Args:
        path: Folder of the dump.
        on_file: Called before each file of numbers, or each shard, is read.

    Raises:
        StorageError: The dump is missing, its manifest or index is damaged, or it has links.
    """
    folder = Path(path)

    def read(root: Container) -> Verification:
        if is_sharded(root):
            result = _verify_shards(ShardedFolder(root), on_file)
        else:
            result = _verify(root, on_file)
        if result.problems and root.is_replaced():
            # The process that replaced the folder removed its files.
            raise replaced_error(folder)
        return result

    return read_dump_folder(folder, read)


def _verify(root: Container, on_file: OnFile) -> Verification:
    manifest, _ = load_manifest(root)
    problems = [
        *_state_problems(root, manifest),
        *policy_problems(root, manifest),
        *description_problems(root, manifest),
    ]
    files = manifest.files(manifest.raw_steps)
    for track, steps in manifest.tracks:
        for leaf in track.leaves:
            file = track.file(leaf)
            on_file(f"reading {file}", files.index(file), len(files))
            problem = track.find_problem(root, leaf, steps)
            if problem is None:
                problems += value_problems(root, manifest, track, leaf)
                continue
            kind: Kind = "missing" if problem == "is missing" else "short"
            where = f"{_track_field(track)}.leaves[{list(track.leaves).index(leaf)}]"
            problems.append(Problem(kind, file, None, f"{file} {problem}", where))
    if not any(problem.kind in ("missing", "short", "checksum") for problem in problems):
        problems += _episode_problems(root, manifest)
    return Verification(
        str(root.path),
        len(manifest.chunks),
        manifest.size,
        manifest.complete,
        manifest.source,
        tuple(problems),
    )


def _verify_shards(dump: ShardedFolder, on_file: OnFile) -> Verification:
    problems = list(policy_problems(dump.root, dump.plan.manifest))
    for place, summary in enumerate(dump.shards):
        dump.manifest(place)
        name = shard_name(summary.shard)
        on_file(f"reading {name}", place, len(dump.shards))
        with dump.open_shard(place) as root:
            result = _verify(root, ignore_progress)
        problems += [
            replace(problem, file=f"{name}/{problem.file}", where=f"{name}/{problem.where}")
            for problem in result.problems
        ]
    whole = dump.whole_manifest()
    return Verification(
        str(dump.folder),
        len(whole.chunks),
        whole.size,
        dump.complete,
        whole.source,
        tuple(problems),
    )


def _state_problems(root: Container, manifest: Manifest) -> Iterator[Problem]:
    state = manifest.state
    if state is None:
        return
    where = f"{INDEX}[{len(manifest.chunks) - 1}].state"
    try:
        read_state(root, state)
    except FileNotFoundError:
        # A writer may have committed another chunk in the meantime.
        if load_manifest(root)[0].state == state:
            message = f"{state.path} is missing"
            yield Problem("missing", state.path, None, message, f"{where}.file")
    except ValueError:
        message = f"the checksum of {state.path} differs"
        yield Problem("checksum", state.path, None, message, f"{where}.crc32")


def policy_problems(root: Container, manifest: Manifest) -> Iterator[Problem]:
    """Yield a problem for each copy of a policy that is not the recorded one."""
    for name in sorted(POLICY_COPIES):
        try:
            with root.open_file(name) as file:
                digest = sha256()
                while block := file.read(BLOCK):
                    digest.update(block)
        except FileNotFoundError:
            continue
        if digest.hexdigest() != manifest.policy_sha256:
            message = f"{name} is not the policy of the dump"
            yield Problem("checksum", name, None, message, f"{MANIFEST}.policy.sha256")


def description_problems(root: Container, manifest: Manifest) -> Iterator[Problem]:
    """Yield a problem for each ``meta.json`` that does not describe the entries.

    An unfinished dump does not need to have them.
    """
    for track, steps in manifest.tracks:
        where = _track_field(track)
        for name, wanted in track.descriptions(steps).items():
            try:
                with root.open_file(name) as file:
                    text = file.read(len(wanted) + 1)
            except FileNotFoundError:
                if manifest.complete:
                    yield Problem("missing", name, None, f"{name} is missing", where)
                continue
            if text != wanted.encode():
                message = f"{name} does not describe the entries"
                yield Problem("checksum", name, None, message, where)


def value_problems(
    root: Container, manifest: Manifest, track: Track, leaf: Parts
) -> Iterator[Problem]:
    """Yield a problem for each chunk whose values in a file differ, and for the first violation.

    The specs of the manifest are compared only with a file that is long enough.
    """
    file = track.file(leaf)
    key = list(leaf[1:] if leaf[0] == "next" else leaf)
    specs = manifest.specs if track.name == DATA else []
    spec = next((spec for spec in specs if spec["key"] == key), None)
    dtype, shape = track.leaves[leaf]
    size = track.step_bytes(leaf)
    block_steps = max(1, BLOCK // max(size, 1))
    is_reported, first = False, 0
    with root.open_file(file) as stream:
        for index, chunk in enumerate(manifest.chunks):
            steps = chunk.steps if track.name == DATA else chunk.raw_steps
            crc, violation = 0, None
            for begin in range(0, steps if size else 0, block_steps):
                count = min(block_steps, steps - begin)
                data = stream.read(count * size)
                crc = zlib.crc32(data, crc)
                if spec is not None and violation is None and not is_reported:
                    values = torch.frombuffer(bytearray(data), dtype=dtype)
                    values = values.reshape(count, *shape)
                    try:
                        violation = describe_violation(values, spec, first + begin)
                    except (TdxError, TypeError, ValueError, RuntimeError, OverflowError):
                        violation = "it cannot be compared with the bounds of its spec"
            if f"{crc:08x}" != chunk.crc32.get(file, NO_BYTES):
                message = f"the checksum of chunk {index} in {file} differs"
                place = manifest.files(chunk.raw_steps).index(file)
                yield Problem("checksum", file, index, message, f"{INDEX}[{index}].crc32[{place}]")
            elif violation and spec is not None:
                is_reported = True
                message = f"{format_key(leaf)!r}: {violation}, in chunk {index}"
                where = f"{MANIFEST}.specs[{manifest.specs.index(spec)}]"
                yield Problem("spec", file, index, message, where)
            first += steps


def _episode_problems(root: Container, manifest: Manifest) -> Iterator[Problem]:
    """Compare the index with the episodes in the stored flags and rewards, if they are stored."""
    track, flags = manifest.data, manifest.flags
    if track is None or flags is None:
        return
    paths = {key: ("next", *split_key(key)) for key in (*flags.rewards, *flags.ends)}
    has_rewards = all(paths[key] in track.leaves for key in flags.rewards)
    if not all(paths[key] in track.leaves for key in flags.ends):
        return
    read = EpisodeKeys(flags.rewards if has_rewards else (), flags.ends)
    rows, start = prod(manifest.batch_size), 0
    stored = EpisodeIndex(rows)
    for chunk in manifest.chunks:
        columns = {}
        for key in (*read.rewards, *read.ends):
            column = track.read_column(root, paths[key], start, chunk.steps)
            width = column.shape[1 + len(track.batch_size) :].numel()
            columns[key] = column.reshape(chunk.steps, rows, width).movedim(0, 1)
        stored.add(*read.read_flat(columns.__getitem__, rows, chunk.steps))
        start += chunk.steps
    yield from _differences(stored, manifest.episodes, has_rewards)


def _differences(
    stored: EpisodeIndex, stated: EpisodeIndex, has_rewards: bool
) -> Iterator[Problem]:
    def problem(message: str, field: str) -> Problem:
        return Problem("episodes", INDEX, None, message, f"{INDEX}[].{field}")

    if len(stored) != len(stated):
        message = f"the index has {len(stated):,} episodes, the data {len(stored):,}"
        yield problem(message, "episodes")
        return
    for name in ("row", "start", "length", "terminated", *(["return"] if has_rewards else [])):
        one, other = stored.column(name), stated.column(name)
        change = compare_tensors(torch.from_numpy(one), torch.from_numpy(other), _ROUNDING)
        if change is not None:
            place = change.step or 0
            yield problem(
                f"the {name} of episode {place} is {other[place]} in the index, "
                f"{one[place]} in the data",
                f"episodes.{name}",
            )
    sums = torch.from_numpy(stored.sums), torch.from_numpy(stated.sums)
    if has_rewards and compare_tensors(*sums, _ROUNDING) is not None:
        yield problem("the returns of the running episodes differ from the data", "running")


def _track_field(track: Track) -> str:
    """Return the field of the index that lists the entries of a track."""
    return f"{INDEX}[0].tracks.{track.name}"

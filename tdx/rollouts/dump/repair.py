"""Cut a damaged dump back to its last intact chunk.

Nothing is lost by a repair: the files that it replaces are kept in the folder ``damaged`` of the
dump, and the numbers after the cut stay in their files until a resumed rollout overwrites them.
A damaged shard of a sharded dump is moved there as a whole, so that it is recorded again.
"""

from __future__ import annotations

import errno
import os
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from tdx.foundation.container import Container, UnsyncedError, seal
from tdx.foundation.errors import StorageError
from tdx.foundation.files import report_write_errors
from tdx.foundation.untrusted import Fields, parse_json
from tdx.rollouts.dump.encoding import DAMAGED, pack
from tdx.rollouts.dump.folder import (
    DAMAGED_FOLDER,
    INDEX,
    MANIFEST,
    SHARD_INDEX,
    STATE,
    StateFile,
    check_links,
    list_temporary,
    lock_for_writing,
    raise_if_unreadable,
    read_state,
)
from tdx.rollouts.dump.index import IndexEntry, Position, parse_entry, read_lines
from tdx.rollouts.dump.manifest import Manifest, header_start, read_header
from tdx.rollouts.dump.progress import ignore_progress
from tdx.rollouts.dump.shard_plan import (
    ShardPlan,
    is_sharded,
    list_shards,
    read_shard_index,
    shard_name,
)
from tdx.rollouts.dump.sharded import ShardedFolder
from tdx.rollouts.dump.track import Track
from tdx.rollouts.dump.verification import (
    OnFile,
    Repair,
    Verification,
    description_problems,
    policy_problems,
    value_problems,
    verify,
)

_NOT_REPAIRED = ("spec", "episodes")
"""Problems of what was recorded, rather than of how it is stored."""
_NO_SPACE = "make room, then repair the dump again"


def repair(path: str | Path, on_file: OnFile = ignore_progress) -> Repair:
    """Cut a dump back to its last intact chunk, and set its damaged shards aside.

    The result is a valid dump that equals the start of the damaged one. It is unfinished if
    anything was cut off, and can be resumed.

    Args:
        path: Folder of the dump.
        on_file: Called before each file is read.

    Raises:
        ArgumentError: Another process writes it.
        StorageError: It is missing, its manifest is damaged, or no chunk is intact.
        OutputError: It cannot be written.
    """
    folder = Path(path)
    if is_sharded(folder):
        return _repair_shards(folder, on_file)
    with lock_for_writing(folder) as root:
        check_links(root)
        job = _Repair(root, on_file)
        job.run()
    with _report_repaired(folder, job.has_changed):
        return job.result(verify(folder, on_file))


@contextmanager
def _report_repaired(folder: Path, has_changed: bool) -> Iterator[None]:
    """Say in errors of reading a dump that it was repaired before."""
    try:
        yield
    except StorageError as error:
        if not has_changed:
            raise
        raise StorageError(
            f"{folder} is repaired, but cannot be verified: {error.message}", hint=error.hint
        ) from error


class _SetAside:
    """Keeps files of a dump in its folder for damaged files."""

    def __init__(self, root: Container) -> None:
        self._root = root
        self.names: dict[str, str] = {}
        """Where each file is kept, by its former name."""

    def copy(self, file: str) -> None:
        """Copy a file."""
        content = self._root.read(file)
        self._root.replace(self._choose_name(file), content)

    def move(self, file: str) -> None:
        """Move a file or a folder.

        Raises:
            FileNotFoundError: It does not exist.
            UnsyncedError: It is moved, but a power loss may bring it back.
        """
        parent, _, last = file.rpartition("/")
        with self._root.subfolder(parent) as source:
            if source.folder.file_type(last) is None:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), file)
            name = self._choose_name(file).rpartition("/")[2]
            with self._root.subfolder(DAMAGED_FOLDER) as target:
                source.folder.rename(last, name, target.folder)
                try:
                    target.sync()
                    source.sync()
                except OSError as error:
                    raise UnsyncedError(self.names[file], error) from error

    def _choose_name(self, file: str) -> str:
        """Return a new name for a file: ``damaged/1-manifest.json``."""
        flat = file.replace("/", "-")
        with self._root.subfolder(DAMAGED_FOLDER, create=True) as folder:
            taken = folder.names()
        number = next(n for n in range(1, len(taken) + 2) if f"{n}-{flat}" not in taken)
        self.names[file] = f"{DAMAGED_FOLDER}/{number}-{flat}"
        return self.names[file]


@dataclass(frozen=True, slots=True)
class _Line:
    entry: IndexEntry
    start: Position
    end: Position


class _Repair:
    """Repair of a dump without shards, which this process has locked."""

    def __init__(self, root: Container, on_file: OnFile) -> None:
        self._root, self._folder, self._on_file = root, root.path, on_file
        self._header = read_header(root)
        self._manifest = Manifest.of_header(self._header)
        self._aside = _SetAside(root)
        self._lines = list(self._read_lines())
        self._is_whole = self._has_whole_index()
        self._kept: list[_Line] = []
        self._rewritten: list[str] = []
        self._unread: list[Fields] = []

    def run(self) -> None:
        """Repair the dump, if anything is damaged."""
        self._manifest.complete = self._header.boolean("complete")
        self._kept = self._lines[: self._count_intact()]
        while self._kept and self._kept[-1].entry.running is None:
            self._kept.pop()
        is_cut = not self._is_whole or len(self._kept) < len(self._lines)
        states = [line.entry.state for line in self._kept if not line.entry.chunk.partial]
        if not self._manifest.complete and states and states[-1] is not None:
            try:
                read_state(self._root, states[-1])
            except (OSError, ValueError) as error:
                raise_if_unreadable(error)
                is_cut = True
        if is_cut and self._kept and self._kept[-1].entry.chunk.partial:
            # A resumed rollout repeats it.
            self._kept.pop()
        if is_cut and not self._kept:
            raise StorageError(
                f"{self._folder} has no intact chunk",
                hint="record it again with --force, or restore a copy; nothing was changed",
            )
        with report_write_errors(self._folder, full_hint=_NO_SPACE):
            for problem in list(policy_problems(self._root, self._manifest)):
                self._aside.move(problem.file)
            if is_cut:
                self._cut()
            else:
                self._describe()
            self._root.discard(list_temporary(self._root))

    @property
    def has_changed(self) -> bool:
        """True if something was damaged."""
        return bool(self._aside.names or self._rewritten)

    def result(self, verification: Verification) -> Repair:
        """Return what was kept and lost."""
        kept, lost = self._kept, self._lines[len(self._kept) :]
        steps, chunks, episodes = _count([line.entry for line in lost])
        for data in self._unread:
            steps, chunks = steps + data.count("steps"), chunks + 1
            episodes += len(data.object("episodes").list("row"))
        remaining = _count([line.entry for line in kept])
        if self._header.boolean("complete"):
            whole = self._header.object("index").count("lines")
            chunks = max(chunks, whole - len(kept))
            steps = max(steps, (self._manifest.goal.steps or 0) - remaining[0])
        return Repair(
            *remaining,
            *(steps, chunks, episodes),
            self._is_whole,
            (),
            tuple(self._aside.names.values()),
            tuple(self._rewritten),
            verification,
        )

    def _read_lines(self) -> Iterator[_Line]:
        """Yield the intact lines of the index, without replaced partial chunks."""
        place = header_start(self._header.data)
        tracks: dict[str, Track] = {}
        partial: _Line | None = None
        try:
            with self._root.open_file(INDEX) as file:
                for fields, end in read_lines(file, place, INDEX):
                    entry = parse_entry(fields, tracks, self._manifest.batch_size)
                    line, place, partial = _Line(entry, place, end), end, None
                    if entry.chunk.partial:
                        partial = line
                        continue
                    for track in entry.tracks:
                        tracks[track.name] = track
                        setattr(self._manifest, track.name, track)
                    yield line
        except FileNotFoundError:
            pass
        except StorageError as error:
            raise_if_unreadable(error)
        if partial is not None:
            for track in partial.entry.tracks:
                setattr(self._manifest, track.name, track)
            yield partial

    def _has_whole_index(self) -> bool:
        """Return True if nothing follows the intact lines, and none is missing."""
        end = self._lines[-1].end if self._lines else header_start(self._header.data)
        try:
            with self._root.open_file(INDEX) as file:
                file.seek(end.offset)
                rest = file.read()
        except FileNotFoundError:
            return False
        if self._header.boolean("complete"):
            return not rest and self._header.value("index") == end.to_dict()
        # A killed process leaves an incomplete last line.
        return b"\n" not in rest

    def _count_intact(self) -> int:
        """Return the number of chunks before the first one whose numbers differ."""
        chunks = self._manifest.chunks
        for line in self._lines:
            chunks.append(line.entry.chunk)
        intact, manifest = len(chunks), replace(self._manifest, specs=[])
        leaves = [(track, leaf) for track, _ in manifest.tracks for leaf in track.leaves]
        for done, (track, leaf) in enumerate(leaves):
            self._on_file(f"reading {track.file(leaf)}", done, len(leaves))
            try:
                problem = next(value_problems(self._root, manifest, track, leaf), None)
            except FileNotFoundError:
                return 0
            if problem is not None:
                intact = min(intact, problem.chunk or 0)
        return intact

    def _cut(self) -> None:
        """Set the manifest and the index aside, and write those of the intact chunks."""
        last, manifest = self._kept[-1], self._manifest
        self._aside.copy(INDEX)
        index = self._root.read(INDEX)
        before, line = index[: last.start.offset], index[last.start.offset : last.end.offset]
        # The lines after the first one that was changed, as far as they can be read.
        rest = b"" if self._is_whole else index[self._lines[-1].end.offset :]
        for text in rest.splitlines():
            with suppress(StorageError):
                fields = Fields(parse_json(text, INDEX), INDEX, DAMAGED)
                fields.count("steps"), fields.object("episodes").list("row")
                self._unread.append(fields)
        if manifest.complete and self._header.value("index") == last.end.to_dict():
            # Only what followed the last line was wrong.
            self._root.replace(INDEX, before + line)
            self._describe()
            return
        self._aside.copy(MANIFEST)
        entry = replace(last.entry, state=self._write_state())
        text, _ = seal(entry.to_dict(), last.start.check)
        # An unfinished dump may have lines of any length, so that a crash in between does no harm.
        manifest.complete = False
        manifest.save_header(self._root, last.end)
        self._root.replace(INDEX, before + text)
        for track, _ in manifest.tracks:
            track.remove_descriptions(self._root)

    def _write_state(self) -> StateFile | None:
        """Set all states aside, and write one with which ``--resume`` runs the steps again."""
        with suppress(FileNotFoundError):
            with self._root.subfolder(STATE) as folder:
                names = sorted(folder.names())
            for name in names:
                self._aside.move(f"{STATE}/{name}")
        if self._manifest.source is not None:
            # A replay cannot be resumed.
            return None
        steps = _count([line.entry for line in self._kept])[0]
        block = pack({"steps": steps, "env": None})
        state = StateFile.after(steps, zlib.crc32(block))
        self._root.replace(state.path, block)
        return state

    def _describe(self) -> None:
        """Replace wrong descriptions, which follow from the index."""
        problems = list(description_problems(self._root, self._manifest))
        for problem in problems:
            if problem.kind == "missing":
                self._rewritten.append(problem.file)
            else:
                self._aside.move(problem.file)
        if problems and self._manifest.complete:
            for track, steps in self._manifest.tracks:
                track.write_descriptions(self._root, steps)


def _count(entries: list[IndexEntry]) -> tuple[int, int, int]:
    """Return the numbers of steps, chunks and ended episodes of lines."""
    steps = sum(entry.chunk.steps for entry in entries)
    return steps, len(entries), sum(len(entry.episodes["row"]) for entry in entries)


def _repair_shards(folder: Path, on_file: OnFile) -> Repair:
    """Set damaged shards aside, and the index that lists them."""
    with lock_for_writing(folder) as root:
        check_links(root)
        plan = ShardPlan.read(root)
        aside = _SetAside(root)
        committed = list_shards(root, plan.count).committed
        checks: dict[int, int] = {}
        for place, shard in enumerate(committed):
            on_file(f"reading {shard_name(shard)}", place, len(committed))
            try:
                _, end = plan.read_shard(root, shard)
                problems = verify(root.path / shard_name(shard)).problems
            except StorageError as error:
                raise_if_unreadable(error)
                continue
            if all(problem.kind in _NOT_REPAIRED for problem in problems):
                checks[shard] = end.check
        # The index exists once all shards were committed.
        recorded = range(plan.count) if SHARD_INDEX in root.names() else committed
        lost = [shard for shard in recorded if shard not in checks]
        with report_write_errors(folder, full_hint=_NO_SPACE):
            for problem in list(policy_problems(root, plan.manifest)):
                aside.move(problem.file)
            if not _is_listed(root, plan, checks):
                aside.move(SHARD_INDEX)
            for shard in set(committed) & set(lost):
                aside.move(shard_name(shard))
    with _report_repaired(folder, bool(aside.names)):
        verification = verify(folder, on_file)
        whole = ShardedFolder(folder).whole_manifest()
    goals = [plan.goal(shard) for shard in lost]
    return Repair(
        *(whole.steps, len(whole.chunks), len(whole.episodes)),
        sum(goal.steps or 0 for goal in goals),
        0,
        sum(goal.episodes or 0 for goal in goals),
        plan.manifest.goal.episodes is None,
        tuple(lost),
        tuple(aside.names.values()),
        (),
        verification,
    )


def _is_listed(root: Container, plan: ShardPlan, checks: dict[int, int]) -> bool:
    """Return True if the index of the shards lists the intact ones, or does not exist."""
    try:
        index = read_shard_index(root, plan)
    except StorageError as error:
        raise_if_unreadable(error)
        return False
    return index is None or {shard.shard: shard.check for shard in index[1]} == checks

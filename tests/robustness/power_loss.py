"""Folders as a power loss may leave them, from recorded calls.

What a disk guarantees is modelled strictly: bytes of a file last once the file was synced, names in
a folder once that folder was synced. Of everything else any part may be there: each 4 KiB of a
write, each name. A rename inside a folder happens entirely or not at all; one between folders never
loses the file, but both names may remain. Bytes of a failed sync may be lost even if a later one
succeeds, as on Linux.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import NamedTuple

from tests.robustness.interposer import Call

_PAGE = 4096
_EXCHANGE = 2

Tree = dict[str, bytes | None]
"""Content of each file by relative path; ``None``: a folder."""


@dataclass(eq=False)
class _Piece:
    """Part of a write within one page, or a new size.

    Args:
        offset: First byte, or the new size.
        data: Bytes; ``None``: a new size.
        state: Whether it lasts: "synced", "pending", or "failed" if syncing it failed.
    """

    offset: int
    data: bytes | None
    state: str = "pending"


@dataclass(eq=False)
class _File:
    """A file: what it had at first, and what happened since then."""

    base: bytes = b""
    pieces: list[_Piece] = field(default_factory=list)

    def write(self, offset: int, data: bytes) -> None:
        end = offset + len(data)
        while offset < end:
            size = min(_PAGE - offset % _PAGE, end - offset)
            self.pieces.append(_Piece(offset, data[:size]))
            data, offset = data[size:], offset + size

    def sync(self, state: str) -> None:
        for piece in self.pieces:
            if piece.state == "pending":
                piece.state = state

    def content(self, keep: Callable[[_Piece], bool], *, sized: bool = False) -> bytes:
        """Return the bytes if some pieces are lost.

        Args:
            keep: Decides about each piece that does not last.
            sized: Whether lost pieces leave zeros behind the end.
        """
        found = bytearray(self.base)
        for piece in self.pieces:
            kept = piece.state == "synced" or keep(piece)
            if piece.data is None:
                if kept:
                    found[piece.offset :] = bytes(max(piece.offset - len(found), 0))
                continue
            end = piece.offset + len(piece.data)
            if kept or sized:
                found.extend(bytes(max(end - len(found), 0)))
            if kept:
                found[piece.offset : end] = piece.data
        return bytes(found)


@dataclass(eq=False)
class _Change:
    """Names of a folder that get another file, at once; ``None``: the name goes.

    Args:
        folder: The folder.
        names: Its new entries.
        after: The change that must last before this one: the new name of a moved file.
        is_synced: Whether it lasts.
    """

    folder: _Folder
    names: dict[str, _Node | None]
    after: _Change | None = None
    is_synced: bool = False


@dataclass(eq=False)
class _Folder:
    """A folder: names at first, their changes, and names now."""

    base: dict[str, _Node] = field(default_factory=dict)
    changes: list[_Change] = field(default_factory=list)
    now: dict[str, _Node] = field(default_factory=dict)

    def change(self, names: dict[str, _Node | None], after: _Change | None = None) -> _Change:
        change = _Change(self, names, after)
        self.changes.append(change)
        _apply(self.now, names)
        return change

    def sync(self) -> None:
        for change in self.changes:
            change.is_synced = change.is_synced or change.after is None or change.after.is_synced

    def entries(self, keep: Callable[[_Change], bool]) -> dict[str, _Node]:
        found = dict(self.base)
        for change in self.changes:
            if change.is_synced or keep(change):
                _apply(found, change.names)
        return found


_Node = _File | _Folder


def _apply(entries: dict[str, _Node], names: dict[str, _Node | None]) -> None:
    for name, node in names.items():
        if node is None:
            entries.pop(name, None)
        else:
            entries[name] = node


class Loss(NamedTuple):
    """What a power loss leaves.

    Args:
        name: Its name.
        pieces: Share of the unsynced pieces of files that remain.
        names: Share of the unsynced names that remain.
        sized: Whether files have their new size nevertheless.
    """

    name: str
    pieces: float
    names: float
    sized: bool = False


KILLED = Loss("killed", 1, 1)
LOSSES = (
    KILLED,
    Loss("all lost", 0, 0),
    Loss("only names", 0, 1),
    Loss("names and sizes", 0, 1, sized=True),
    Loss("only bytes", 1, 0),
    Loss("torn", 0.5, 1),
    Loss("reordered", 1, 0.5),
    Loss("torn and reordered", 0.5, 0.5, sized=True),
)


class Disk:
    """A folder whose recorded calls are replayed.

    Args:
        folder: Absolute path of the folder, before the first call.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._nodes: dict[int, _Node] = {}
        self._root = self._read(folder)

    def _read(self, path: Path) -> _Node:
        node: _Node
        if path.is_dir():
            node = _Folder({entry.name: self._read(entry) for entry in path.iterdir()})
            node.now = dict(node.base)
        else:
            node = _File(path.read_bytes())
        self._nodes[path.stat().st_ino] = node
        return node

    def _locate(self, path: str) -> tuple[_Folder, str]:
        """Return the folder of a path, and its name there."""
        node: _Node = self._root
        *parents, last = Path(path).relative_to(self._folder).parts or ("",)
        for part in parents:
            assert isinstance(node, _Folder)
            node = node.now[part]
        assert isinstance(node, _Folder)
        return node, last

    def replay(self, call: Call) -> bool:
        """Apply a call; return True if it can change what a power loss leaves."""
        if call.result < 0:
            file = self._nodes.get(call.inode)
            if call.kind == "s" and call.result != -errno.EINTR and isinstance(file, _File):
                file.sync("failed")
                return True
            return False
        if call.kind == "o":
            # Truncation is a size of its own: it may last without what is written afterwards.
            if call.result:
                folder, name = self._locate(call.path)
                self._nodes[call.inode] = file = _File()
                folder.change({name: file})
            elif call.flags & os.O_TRUNC:
                self._file(call).pieces.append(_Piece(0, None))
            return bool(call.result or call.flags & os.O_TRUNC)
        if call.kind == "w":
            self._file(call).write(call.offset, call.data)
        elif call.kind == "t":
            self._file(call).pieces.append(_Piece(call.offset, None))
        elif call.kind == "s":
            node = self._nodes[call.inode]
            if isinstance(node, _Folder):
                node.sync()
            else:
                node.sync("synced")
        elif call.kind in "dul":
            folder, name = self._locate(call.path)
            if call.kind == "l":
                folder, name = self._locate(call.other)
            elif call.kind == "d":
                self._nodes[call.inode] = _Folder()
            folder.change({name: None if call.kind == "u" else self._nodes[call.inode]})
        elif call.kind == "n":
            self._rename(call)
        return call.kind != "r"

    def _file(self, call: Call) -> _File:
        node = self._nodes[call.inode]
        assert isinstance(node, _File), call
        return node

    def _rename(self, call: Call) -> None:
        (source, old), (target, new) = self._locate(call.path), self._locate(call.other)
        left = target.now.get(new) if call.flags & _EXCHANGE else None
        if source is target:
            source.change({new: source.now[old], old: left})
        else:
            arrival = target.change({new: source.now[old]})
            source.change({old: left}, arrival)

    def remains(self, loss: Loss, random: Random) -> Tree:
        """Return what a power loss leaves."""

        def keep(share: float) -> Callable[[object], bool]:
            return lambda _: share == 1 or random.random() < share

        decided: dict[_Change, bool] = {}

        def keep_change(change: _Change) -> bool:
            if change not in decided:
                decided[change] = (change.is_synced or keep(loss.names)(change)) and (
                    change.after is None or keep_change(change.after)
                )
            return decided[change]

        def walk(node: _Node, path: str) -> Iterator[tuple[str, bytes | None]]:
            if isinstance(node, _File):
                yield path, node.content(keep(loss.pieces), sized=loss.sized)
                return
            if path:
                yield path, None
            for name, inner in sorted(node.entries(keep_change).items()):
                yield from walk(inner, f"{path}/{name}" if path else name)

        return dict(walk(self._root, ""))


def read_tree(folder: Path) -> Tree:
    """Return the content of a folder."""
    return {
        str(path.relative_to(folder)): None if path.is_dir() else path.read_bytes()
        for path in sorted(folder.rglob("*"))
    }


def write_tree(tree: Tree, folder: Path) -> None:
    """Create a folder with the content, old enough that no process can still be writing it."""
    folder.mkdir()
    for name, content in tree.items():
        if content is None:
            (folder / name).mkdir()
        else:
            (folder / name).write_bytes(content)
    age(folder)


def age(folder: Path) -> None:
    """Make everything in a folder a day old."""
    for path in [*folder.rglob("*"), folder]:
        status = path.stat()
        os.utime(path, (status.st_atime - 86_400, status.st_mtime - 86_400))


def check_recording(before: Disk, calls: Iterable[Call], after: Tree) -> str | None:
    """Replay calls without a loss; return the first path that differs from the folder itself."""
    for call in calls:
        before.replay(call)
    replayed = before.remains(KILLED, Random(0))
    for name in sorted(replayed.keys() | after.keys()):
        if name not in after or name not in replayed or replayed[name] != after[name]:
            return name
    return None

"""Links in a dump do not give access to files outside its folder."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tdx import ArgumentError, StorageError, export_dump, open_dump
from tdx.pipeline import parse_stage
from tdx.rollouts import Manifest, list_dumps, replay, resume, roll_out, verify
from tdx.rollouts.dump.writing import DumpWriter
from tests.rollouts.recordings import CutError, interrupt_after, record, request

CONTENT = b"precious"


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """Create a file outside the dump that must not change."""
    file = tmp_path / "outside"
    file.write_bytes(CONTENT)
    return file


@pytest.fixture
def cut(tmp_path: Path) -> Path:
    """Record an unfinished dump."""
    with pytest.raises(CutError):
        roll_out(request("Pendulum-v1", bare=True), tmp_path / "cut", on_chunk=interrupt_after(2))
    return tmp_path / "cut"


def linked(name: str) -> Callable[[Path, Path], None]:
    """Return a function that replaces a part of a dump with a link to a copy outside."""

    def attack(folder: Path, outside: Path) -> None:
        target = outside.with_name("copy")
        (folder / name).rename(target)
        (folder / name).symlink_to(target)

    return attack


def link_to_outside(name: str) -> Callable[[Path, Path], None]:
    """Return a function that adds a link to a file outside the dump."""

    def attack(folder: Path, outside: Path) -> None:
        (folder / name).unlink(missing_ok=True)
        (folder / name).symlink_to(outside)

    return attack


def pipe(folder: Path, outside: Path) -> None:
    """Replace a file with a pipe."""
    (folder / "data" / "action.memmap").unlink()
    os.mkfifo(folder / "data" / "action.memmap")


@pytest.mark.parametrize(
    "attack",
    [
        linked("data"),
        linked("data/next"),
        linked("state"),
        linked("manifest.json"),
        linked("chunks.jsonl"),
        linked("data/action.memmap"),
        link_to_outside("data/action.memmap"),
        link_to_outside("data/meta.json"),
        link_to_outside(".manifest.json.part"),
        link_to_outside("state/link.state"),
        link_to_outside("raw"),
        pipe,
    ],
    ids=[
        *("data", "next", "state", "manifest", "index", "entry", "entry outside", "description"),
        *("part", "new state", "raw", "pipe"),
    ],
)
def test_dump_with_links_is_refused(
    cut: Path, outside: Path, tmp_path: Path, attack: Callable[[Path, Path], None]
) -> None:
    attack(cut, outside)
    uses: list[Callable[[], object]] = [
        lambda: open_dump(cut),
        lambda: verify(cut),
        lambda: resume(cut),
        lambda: export_dump(cut, tmp_path / "x.npz"),
        lambda: replay(open_dump(cut), (parse_stage("RewardSum"),), tmp_path / "replay_stages"),
    ]
    for use in uses:
        with pytest.raises(
            StorageError, match=r"is (a symbolic link|not a regular file)"
        ) as raised:
            use()
        assert raised.value.hint
    assert outside.read_bytes() == CONTENT
    (listed,) = (each for each in list_dumps(tmp_path) if each.path == str(cut))
    assert listed.problem


def test_link_created_after_the_check_is_not_followed(
    cut: Path, outside: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entered = DumpWriter.__enter__

    def attacked(self: DumpWriter) -> DumpWriter:
        link_to_outside("data/action.memmap")(cut, outside)
        return entered(self)

    monkeypatch.setattr(DumpWriter, "__enter__", attacked)
    with pytest.raises(StorageError, match="is a symbolic link"):
        resume(cut)
    assert outside.read_bytes() == CONTENT


def test_file_with_a_hard_link_is_not_written(cut: Path, outside: Path) -> None:
    outside.unlink()
    os.link(cut / "data" / "action.memmap", outside)
    before = outside.read_bytes()
    with pytest.raises(StorageError, match="is a hard link to a file outside") as raised:
        resume(cut)
    assert raised.value.hint
    assert outside.read_bytes() == before


def test_force_does_not_follow_links(tmp_path: Path, outside: Path) -> None:
    record(tmp_path / "dump", "Pendulum-v1", bare=True)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "action.memmap").write_bytes(CONTENT)
    linked("data")(tmp_path / "dump", outside)
    copy = {
        each.name: each.read_bytes() for each in (tmp_path / "copy").iterdir() if each.is_file()
    }
    (tmp_path / "dump" / "state").symlink_to(elsewhere)
    roll_out(request("Pendulum-v1", bare=True), tmp_path / "dump", force=True)
    assert verify(tmp_path / "dump").is_fine
    assert (elsewhere / "action.memmap").read_bytes() == CONTENT
    for name, content in copy.items():
        assert (tmp_path / "copy" / name).read_bytes() == content


def test_force_refuses_a_folder_with_other_files(tmp_path: Path) -> None:
    record(tmp_path / "dump", "Pendulum-v1", bare=True)
    (tmp_path / "dump" / "notes.txt").write_text("mine")
    with pytest.raises(ArgumentError, match=r"'notes.txt', which does not belong") as raised:
        roll_out(request("Pendulum-v1", bare=True), tmp_path / "dump", force=True)
    assert raised.value.hint
    assert (tmp_path / "dump" / "notes.txt").read_text() == "mine"
    assert Manifest.load(tmp_path / "dump").complete


def test_link_to_a_dump_opens_and_is_not_replaced(tmp_path: Path) -> None:
    record(tmp_path / "dump", "Pendulum-v1", bare=True)
    (tmp_path / "link").symlink_to(tmp_path / "dump")
    assert verify(tmp_path / "link").is_fine
    with pytest.raises(ArgumentError, match="is a symbolic link to"):
        roll_out(request("Pendulum-v1", bare=True), tmp_path / "link", force=True)
    assert Manifest.load(tmp_path / "dump").complete

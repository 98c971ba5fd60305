"""Files and folders are replaced atomically."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
from pathlib import Path
from typing import IO

import pytest

from tdx.foundation.container import make_folders
from tdx.foundation.errors import ArgumentError
from tdx.foundation.files import (
    atomic_folder,
    atomic_write,
    check_replaceable,
    check_replaceable_folder,
    is_stream,
    write_atomically,
)
from tests.programs import exhaustive


def _fail(file: IO[bytes]) -> None:
    with file:
        file.write(b"new")
    raise OSError("the disk is full")


def test_failed_write_keeps_the_old_file_and_leaves_no_other(tmp_path: Path) -> None:
    target = tmp_path / "a"
    target.write_text("old")
    with pytest.raises(OSError, match="disk"), atomic_write(target) as file:
        _fail(file)
    assert target.read_text() == "old"
    assert os.listdir(tmp_path) == ["a"]


def test_killed_write_keeps_the_old_file(tmp_path: Path) -> None:
    target = tmp_path / "a"
    target.write_text("old")
    code = (
        "import os, sys\nfrom tdx.foundation.files import atomic_write\n"
        "with atomic_write(sys.argv[1]) as file:\n"
        "    file.write(b'new'); file.flush(); os.kill(os.getpid(), 9)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(target)], check=False)
    assert done.returncode == -signal.SIGKILL
    assert target.read_text() == "old"


def test_temporary_file_of_a_killed_write_goes_with_the_next_write(tmp_path: Path) -> None:
    target = tmp_path / "a"
    code = (
        "import os, sys\nfrom tdx.foundation.files import atomic_write\n"
        "with atomic_write(sys.argv[1]) as file:\n"
        "    os.kill(os.getpid(), 9)\n"
    )
    subprocess.run([sys.executable, "-c", code, str(target)], check=False)
    (left,) = tmp_path.iterdir()
    os.utime(left, (0, 0))
    write_atomically(target, "new")
    assert os.listdir(tmp_path) == ["a"]


def test_temporary_file_of_a_running_write_stays(tmp_path: Path) -> None:
    with atomic_write(tmp_path / "a") as file:
        file.write(b"slow")
        (part,) = tmp_path.iterdir()
        os.utime(part, (0, 0))
        write_atomically(tmp_path / "a", "quick")
    assert (tmp_path / "a").read_text() == "slow"


def test_empty_folder_that_a_killed_process_left_is_flushed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flushed: list[str] = []
    monkeypatch.setattr(
        os, "fsync", lambda descriptor: flushed.append(os.readlink(f"/proc/self/fd/{descriptor}"))
    )
    (tmp_path / "a").mkdir()
    make_folders(tmp_path / "a")
    assert flushed == [str(tmp_path)]
    flushed.clear()
    make_folders(tmp_path / "a" / "b")
    assert flushed == [str(tmp_path), str(tmp_path / "a")]
    flushed.clear()
    make_folders(tmp_path / "a")
    assert not flushed


@pytest.mark.parametrize("folder", ["file/a", "file/a/b"])
def test_a_folder_below_a_file_is_refused_as_such(tmp_path: Path, folder: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError):
        make_folders(tmp_path / folder)
    with pytest.raises(FileExistsError):
        make_folders(tmp_path / "file")


def test_permissions_of_the_old_file_are_preserved(tmp_path: Path) -> None:
    target = tmp_path / "a"
    target.write_text("old")
    target.chmod(0o640)
    write_atomically(target, "new")
    assert stat.S_IMODE(target.stat().st_mode) == 0o640


def test_guessed_temporary_name_is_not_followed(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    folder = tmp_path / "dump"
    folder.mkdir()
    for name in (".a.part", ".a.unfinished", ".a.tmp"):
        (folder / name).symlink_to(victim)
    write_atomically(folder / "a", "new")
    assert victim.read_text() == "precious"


def test_device_is_written_directly() -> None:
    before = os.stat(os.devnull)
    check_replaceable(os.devnull, force=True)
    write_atomically(os.devnull, "gone")
    after = os.stat(os.devnull)
    assert is_stream(os.devnull)
    assert (before.st_rdev, before.st_ino) == (after.st_rdev, after.st_ino)


def test_pipe_is_written_directly(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        write_atomically(pipe, "through")
        assert os.read(reader, 100) == b"through"
    finally:
        os.close(reader)
    assert stat.S_ISFIFO(pipe.lstat().st_mode)


@pytest.mark.parametrize("force", [False, True])
def test_link_is_rejected(tmp_path: Path, force: bool) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ArgumentError, match="symbolic link to"):
        check_replaceable(tmp_path / "link", force=force)


def test_existing_file_needs_force(tmp_path: Path) -> None:
    (tmp_path / "a").touch()
    with pytest.raises(ArgumentError, match="already exists"):
        check_replaceable(tmp_path / "a", force=False)
    check_replaceable(tmp_path / "a", force=True)
    with pytest.raises(ArgumentError, match="is a folder"):
        check_replaceable(tmp_path, force=True)


def test_folder_is_replaced_only_with_force_and_if_it_is_of_its_kind(tmp_path: Path) -> None:
    target = tmp_path / "out"

    def check(folder: Path = target, *, force: bool = True) -> None:
        check_replaceable_folder(folder, "a model", lambda it: (it / "model").exists(), force=force)

    check(force=False)
    target.mkdir()
    check(force=False)
    (target / "model").touch()
    check()
    with pytest.raises(ArgumentError, match="already exists"):
        check(force=False)
    (target / "model").rename(target / "notes")
    with pytest.raises(ArgumentError, match="exists and is not a model"):
        check()
    with pytest.raises(ArgumentError, match="exists and is not a model"):
        check(target / "notes")
    (tmp_path / "link").symlink_to(target)
    with pytest.raises(ArgumentError, match="symbolic link to"):
        check(tmp_path / "link")


def test_folder_is_replaced_atomically(tmp_path: Path) -> None:
    target = tmp_path / "out"
    for text in ("one", "two"):
        with atomic_folder(target) as folder:
            (folder / text).write_text(text)
        assert os.listdir(target) == [text]
    with pytest.raises(OSError, match="disk"), atomic_folder(target) as folder:
        _fail((folder / "three").open("wb"))
    assert os.listdir(target) == ["two"]
    assert os.listdir(tmp_path) == ["out"]


@exhaustive
def test_name_exists_at_every_moment_of_an_exchange(tmp_path: Path) -> None:
    target = tmp_path / "out"
    with atomic_folder(target) as folder:
        (folder / "a").touch()
    code = (
        "import sys\nfrom tdx.foundation.files import atomic_folder\n"
        "for _ in range(300):\n"
        "    with atomic_folder(sys.argv[1]) as folder: (folder / 'a').touch()\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code, str(target)])
    missing = 0
    while process.poll() is None:
        missing += not (target / "a").exists() and not target.exists()
    assert process.returncode == 0
    assert not missing

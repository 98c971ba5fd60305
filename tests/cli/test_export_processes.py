"""Processes that export and import dumps, including failures."""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tdx import Pipeline
from tdx.cli.runtime import reliable_sigint
from tdx.rollouts import DumpRequest, Goal, export_formats, roll_out
from tdx.rollouts.dump.progress import Progress
from tests.cli.processes import assert_quiet_without_reader, assert_refused, run, start
from tests.cli.test_dump_processes import PENDULUM, READ_ONLY
from tests.programs import exhaustive, sampled
from tests.rollouts.export_dumps import require_format
from tests.rollouts.recordings import assert_same_dump, in_memory

BACK = [each.name for each in export_formats() if each.can_import]


@pytest.fixture(scope="module")
def made() -> Iterator[Path]:
    """Record a dump of 3,000 steps in 75 chunks."""
    with in_memory() as place:
        path = str(Path(place) / "dump")
        assert run(*PENDULUM, "--steps", "3000", "--chunk", "40", "--out", path).code == 0
        yield Path(path)


@pytest.fixture
def folder(made: Path) -> Iterator[Path]:
    """Yield a temporary working directory with ``dump``."""
    before = Path.cwd()
    with in_memory() as place:
        os.chdir(place)
        Path("dump").symlink_to(made)
        yield Path(place)
        os.chdir(before)


def left(folder: Path) -> list[str]:
    """Return the names of all files except ``dump``."""
    return sorted(each.name for each in folder.iterdir() if each.name != "dump")


# `tests/rollouts/test_formats.py` exports and imports every format.
@pytest.mark.parametrize("name", ["hdf5", "parquet"])
@exhaustive
def test_imported_export_equals_the_dump(folder: Path, name: str) -> None:
    require_format(name)
    there = run("export", "dump", "--to", name, "--out", "file", "--format", "json")
    assert (there.code, there.err) == (0, "")
    assert json.loads(there.out)["written"] is True
    back = run("import", "file", "--from", name, "--out", "again")
    assert (back.code, back.err) == (0, "")
    assert_same_dump("again", "dump")
    assert left(folder) == ["again", "file"]
    assert_refused(
        run("export", "dump", "--to", name, "--out", "file"), 2, "already exists", "--force"
    )
    assert_refused(run("import", "file", "--from", name, "--out", "again"), 2, "already", "--force")


def limit_files() -> None:
    # Python 3.11 does not notice that it wrote a part of a bytecode file, which breaks later tests.
    sys.dont_write_bytecode = True
    resource.setrlimit(resource.RLIMIT_FSIZE, (9_000, 9_000))


@pytest.mark.parametrize("name", BACK)
@sampled(3)
def test_file_size_limit_removes_the_partial_export(folder: Path, name: str) -> None:
    require_format(name)

    ended = run("export", "dump", "--to", name, "--out", "file", before=limit_files)
    assert_refused(ended, 3, "cannot write file: file too large", "make room")
    assert left(folder) == []


@exhaustive
def test_file_size_limit_removes_the_partial_import(folder: Path) -> None:
    assert run("export", "dump", "--to", "npz", "--out", "file.npz").code == 0

    ended = run("import", "file.npz", "--out", "again", before=limit_files)
    assert_refused(ended, 3, "cannot write again: file too large", "make room")
    assert left(folder) == ["file.npz"]


def test_read_only_target_is_reported(folder: Path) -> None:
    target = folder / "closed"
    target.mkdir(mode=0o555)
    place = READ_ONLY if os.access(target, os.W_OK) else str(target)
    ended = run("export", "dump", "--out", f"{place}/x.npz")
    assert_refused(ended, 3, f"cannot write {place}/x.npz: ", "name another place")


def test_interrupted_export_leaves_no_files(folder: Path) -> None:
    err = os.memfd_create("err")
    child = start(("export", "dump", "--to", "jsonl", "--out", "x.jsonl"), {2: err})
    while not list(folder.glob(".x.jsonl.*.tmp/x.jsonl")):
        time.sleep(0.001)
    os.kill(child, signal.SIGINT)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 130
    assert os.fstat(err).st_size == 0
    os.close(err)
    assert left(folder) == []


@exhaustive
def test_killed_export_keeps_the_existing_one(folder: Path) -> None:
    require_format("zarr")
    assert run("export", "dump", "--to", "zarr", "--out", "x.zarr").code == 0
    child = start(("export", "dump", "--to", "zarr", "--out", "x.zarr", "--force"), {})
    while not (parts := list(folder.glob(".x.zarr.*.tmp"))):
        time.sleep(0.001)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    assert run("import", "x.zarr", "--out", "again").code == 0
    assert_same_dump("again", "dump")
    for part in parts:
        if part.exists():
            os.utime(part, (0, 0))
    assert run("export", "dump", "--to", "zarr", "--out", "x.zarr", "--force").code == 0
    assert left(folder) == ["again", "x.zarr"]


def test_interrupt_swallowed_by_a_finalizer_is_raised_later() -> None:
    class Thing:
        """Object whose finalizer raises SIGINT."""

        def __del__(self) -> None:
            signal.raise_signal(signal.SIGINT)
            time.sleep(0)

    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt), reliable_sigint() as check:  # noqa: PT012
        thing: Thing | None = Thing()
        del thing
        check()
    with pytest.raises(KeyboardInterrupt), reliable_sigint():
        Thing()
    assert signal.getsignal(signal.SIGINT) is before


def test_ignored_sigint_stays_ignored() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with reliable_sigint() as check:
            signal.raise_signal(signal.SIGINT)
            check()
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


@exhaustive
def test_damaged_dump_is_refused(folder: Path) -> None:
    assert run(*PENDULUM, "--steps", "50", "--chunk", "20", "--out", "bad").code == 0
    file = folder / "bad" / "data" / "next" / "reward.memmap"
    data = bytearray(file.read_bytes())
    data[25 * 4] ^= 1
    file.write_bytes(data)
    export = ("export", "bad", "--to", "npz")
    assert_refused(run(*export), 3, "the checksum of chunk 1 in bad/data/next/reward", "tdx verify")
    file.write_bytes(data[:100])
    assert_refused(run(*export), 3, "has 100 bytes, 200 are needed", "tdx verify")
    file.unlink()
    assert_refused(run(*export), 3, "reward.memmap is missing", "tdx verify")
    assert left(folder) == ["bad"]


def test_dump_without_steps_is_refused(folder: Path) -> None:
    def interrupt(progress: Progress) -> None:
        raise KeyboardInterrupt

    request = DumpRequest(Pipeline.of("Pendulum-v1"), Goal(steps=5), seed=0)
    with pytest.raises(KeyboardInterrupt):
        roll_out(request, folder / "none", on_chunk=interrupt)
    (folder / "none" / "chunks.jsonl").write_text("")
    assert_refused(run("export", "none", "--to", "npz"), 3, "none has no steps yet", "--resume")


@exhaustive
def test_closed_pipe_is_not_an_error(folder: Path) -> None:
    for arguments in (("export", "dump", "-o", "-"), ("export", "dump", "-o", "x.npz")):
        assert_quiet_without_reader(arguments)
    assert left(folder) == ["x.npz"]


@pytest.mark.parametrize("name", ["parquet", "mp4"])
def test_missing_package_is_reported(folder: Path, name: str) -> None:
    kind = next(each for each in export_formats() if each.name == name)

    def without() -> None:
        sys.modules[kind.packages[0]] = None  # type: ignore[assignment]

    ended = run("export", "dump", "--to", name, before=without)
    message = f"{name} needs {kind.packages[0]}, which is not installed"
    assert_refused(ended, 3, message, f"install tdx with its extra `{kind.extra}`")

"""Files that commands write: devices, pipes, links and existing files."""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import pytest

from tdx.rollouts import export_dump, import_dump
from tests.cli.conftest import Tdx
from tests.cli.processes import start
from tests.rollouts.recordings import record

PENDULUM = ("--env", "Pendulum-v1")
PROFILE = (
    "profile",
    *PENDULUM,
    "--steps",
    "2",
    "--warmup",
    "1",
    "--repeat",
    "1",
    "--passes",
    "none",
)


@pytest.fixture(scope="module")
def dump(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made") / "dump"
    record(folder)
    return folder


def commands(dump: Path) -> dict[str, tuple[str, ...]]:
    """Return commands that write a file, without the path of the file."""
    return {
        "report": ("report", *PENDULUM, "--steps", "5", "--out"),
        "init": ("init", *PENDULUM, "-y"),
        "html": (*PROFILE, "--html"),
        "jsonl": ("export", str(dump), "--to", "jsonl", "--out"),
        "npz": ("export", str(dump), "--to", "npz", "--out"),
    }


NAMES = list(commands(Path()))


@contextmanager
def read_from(pipe: Path) -> Iterator[list[bytes]]:
    """Read a pipe in a thread; the list contains its content after the block."""
    os.mkfifo(pipe)
    found: list[bytes] = []
    reader = threading.Thread(target=lambda: found.append(pipe.read_bytes()), daemon=True)
    reader.start()
    yield found
    reader.join(600)
    assert not reader.is_alive()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("force", [False, True])
def test_output_is_written_to_an_existing_pipe(
    tdx: Tdx, tmp_path: Path, dump: Path, name: str, force: bool
) -> None:
    pipe = tmp_path / "pipe"
    with read_from(pipe) as found:
        ended = tdx(*commands(dump)[name], str(pipe), *(["--force"] if force else []))
        assert ended.code == 0, ended.err
    assert len(found[0]) > 50
    assert stat.S_ISFIFO(pipe.lstat().st_mode)
    assert os.listdir(tmp_path) == ["pipe"]


@pytest.mark.parametrize("name", NAMES)
def test_symbolic_link_is_refused(tdx: Tdx, tmp_path: Path, dump: Path, name: str) -> None:
    (tmp_path / "precious").write_text("precious")
    link = tmp_path / "link"
    for target in (tmp_path / "precious", tmp_path / "nothing"):
        link.symlink_to(target)
        for force in ([], ["--force"]):
            ended = tdx(*commands(dump)[name], str(link), *force)
            assert ended.code == 2
            assert "is a symbolic link to" in ended.err
            assert "hint: " in ended.err
        assert link.readlink() == target
        link.unlink()
    assert (tmp_path / "precious").read_text() == "precious"
    assert os.listdir(tmp_path) == ["precious"]


@pytest.mark.parametrize("name", NAMES)
def test_existing_file_needs_force(tdx: Tdx, tmp_path: Path, dump: Path, name: str) -> None:
    file = tmp_path / "file"
    file.write_text("old")
    file.chmod(0o640)
    refused = tdx(*commands(dump)[name], str(file))
    assert refused.code == 2
    assert "already exists" in refused.err
    assert "use --force" in refused.err
    assert file.read_text() == "old"
    assert tdx(*commands(dump)[name], str(file), "--force").code == 0
    assert file.stat().st_size > 50
    assert stat.S_IMODE(file.stat().st_mode) == 0o640
    assert os.listdir(tmp_path) == ["file"]


def test_device_is_not_replaced(tdx: Tdx, tmp_path: Path) -> None:
    device = tmp_path / "null"
    with suppress(OSError):
        os.mknod(device, 0o666 | stat.S_IFCHR, os.makedev(1, 3))
        device.write_bytes(b"")
    if not device.exists() or not os.access(device, os.W_OK):
        device = Path("/dev/fd/1")  # only root may create a device: use a link to a stream
    before = device.lstat()
    for arguments in (("init", *PENDULUM, "-y"), (*PROFILE, "--save")):
        ended = tdx(*arguments, str(device), "--force")
        assert ended.code == 0, ended.err
    after = device.lstat()
    assert (before.st_mode, before.st_ino) == (after.st_mode, after.st_ino)


def test_dev_stdout_appends_to_a_redirected_file(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("first\n")
    with log.open("ab") as stream:
        child = start(("init", *PENDULUM, "-y", "/dev/stdout"), {1: stream.fileno()})
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    text = log.read_text()
    assert text.startswith("first\n# Pipeline for Pendulum-v1")


def test_check_fix_refuses_a_link(tdx: Tdx, tmp_path: Path) -> None:
    real, link = tmp_path / "real.yaml", tmp_path / "link.yaml"
    text = "version: 1\nenv: Pendulum-v1\ntransforms:\n  - RewardScaling: {loc: 0.0, scale: 1.0}\n"
    real.write_text(text)
    link.symlink_to(real)
    ended = tdx("check", "--pipeline", str(link), "--fix")
    assert "is a symbolic link to" in ended.err
    assert link.is_symlink()
    assert real.read_text() == text


@pytest.mark.parametrize("kind", ["zarr", "minari"])
def test_link_to_a_folder_is_refused(tmp_path: Path, dump: Path, kind: str) -> None:
    pytest.importorskip(kind)
    keys = ["observation", "action", "reward", "terminated", "truncated"]
    (tmp_path / "real").mkdir()
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "real")
    from tdx.foundation.errors import ArgumentError

    with pytest.raises(ArgumentError, match="is a symbolic link to"):
        export_dump(dump, link, to=kind, keys=keys, force=True)
    np.savez(tmp_path / "x.npz", reward=np.zeros(3))
    with pytest.raises(ArgumentError, match="is a symbolic link to"):
        import_dump(tmp_path / "x.npz", link, force=True)
    assert link.is_symlink()
    assert not list((tmp_path / "real").iterdir())

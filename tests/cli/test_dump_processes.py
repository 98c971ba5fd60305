"""Processes that write and read dumps, including failures.

Each test runs ``tdx`` in forks of this process, which has already imported torch. A fork has its
own streams and exit code.
"""

from __future__ import annotations

import json
import os
import pty
import random
import resource
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tensordict.nn import TensorDictModule
from torch import nn

from tdx import open_dump
from tdx.rollouts import Manifest
from tests.cli.processes import assert_quiet_without_reader, assert_refused, run, start
from tests.programs import exhaustive, require_program
from tests.rollouts.recordings import assert_same_dump, in_memory

PENDULUM = ("rollout", "--env", "Pendulum-v1", "--t", "RewardSum", "--seed", "0")
LONG = (*PENDULUM, "--steps", "3000", "--chunk", "40")
READ_ONLY = "/sys"


@pytest.fixture
def folder() -> Iterator[Path]:
    """Yield a temporary working directory."""
    before = Path.cwd()
    with in_memory() as place:
        os.chdir(place)
        yield Path(place)
        os.chdir(before)


@pytest.fixture
def dump(folder: Path) -> Path:
    """Record a dump of three chunks."""
    assert run(*PENDULUM, "--steps", "50", "--chunk", "20", "--out", "dump").code == 0
    return folder / "dump"


@exhaustive
def test_existing_dump_needs_force(dump: Path) -> None:
    before = (dump / "manifest.json").read_bytes()
    again = (*PENDULUM, "--steps", "10", "--out", "dump")
    assert_refused(run(*again), 2, "dump already has a dump", "--force replaces it")
    assert (dump / "manifest.json").read_bytes() == before
    assert run(*again, "--force").code == 0
    assert open_dump(dump).data.shape == (10,)
    (dump.parent / "notes").mkdir()
    (dump.parent / "notes" / "todo").touch()
    assert_refused(
        run(*PENDULUM, "--steps", "10", "--out", "notes", "--force"),
        *(2, "notes exists and is not a dump", "name a new folder"),
    )


@exhaustive
def test_replay_does_not_overwrite_its_source(folder: Path) -> None:
    assert run(*PENDULUM[:3], "--steps", "9", "--out", "plain").code == 0
    before = (folder / "plain" / "manifest.json").read_bytes()
    assert_refused(
        run("replay", "plain", "--t", "RewardSum", "--out", "./plain", "--force"),
        *(2, "plain is the dump that is replayed", "name another folder"),
    )
    assert (folder / "plain" / "manifest.json").read_bytes() == before
    assert_refused(
        run("replay", "plain", "--t", "RewardSumm"),
        *(2, "error: stage 0 (RewardSumm): unknown transform", "did you mean RewardSum"),
    )


@exhaustive
def test_dump_of_a_newer_version_is_refused(dump: Path) -> None:
    manifest = json.loads((dump / "manifest.json").read_text())
    (dump / "manifest.json").write_text(json.dumps({**manifest, "version": 3}))
    for command in (("show", "./dump"), ("verify", "dump"), ("replay", "dump", "--t", "RewardSum")):
        assert_refused(run(*command), 3, "dump is a dump of version 3", "newer release")
    assert_refused(run("rollout", "--resume", "--out", "dump"), 3, "of version 3", "newer release")


@exhaustive
def test_damaged_manifest_is_refused(dump: Path) -> None:
    (dump / "manifest.json").write_text((dump / "manifest.json").read_text()[:200])
    assert_refused(run("verify", "dump"), 3, "manifest.json is not valid JSON", "damaged")
    (dump / "manifest.json").write_text('{"format": "tdx-dump", "version": 2}')
    assert_refused(
        run("show", "./dump"), 3, "was changed after it was written", "damaged or was edited"
    )
    (dump / "manifest.json").write_text('{"format": "tdx-dump", "version": 1}')
    assert_refused(run("show", "./dump"), 3, "is a dump of version 1", "record it again")


@exhaustive
def test_verify_reports_a_wrong_checksum(dump: Path) -> None:
    file = dump / "data" / "next" / "reward.memmap"
    data = bytearray(file.read_bytes())
    data[25 * 4] ^= 1
    file.write_bytes(data)
    ended = run("verify", "dump", "--format", "jsonl")
    assert (ended.code, ended.err) == (1, "")
    (problem,) = map(json.loads, ended.out.splitlines())
    assert (problem["file"], problem["chunk"]) == ("data/next/reward.memmap", 1)


@exhaustive
def test_truncated_or_missing_data_is_refused(dump: Path) -> None:
    file = dump / "data" / "observation.memmap"
    file.write_bytes(file.read_bytes()[: 40 * 12])
    assert_refused(run("show", "./dump"), 3, "has 480 bytes, 600 are needed", "tdx verify")
    assert run("verify", "dump").code == 1
    file.unlink()
    assert_refused(run("show", "./dump"), 3, "observation.memmap is missing", "tdx verify")
    verified = run("verify", "dump")
    assert verified.code == 1
    assert "data/observation.memmap is missing" in verified.out


def test_read_only_target_is_reported(folder: Path) -> None:
    target = folder / "closed"
    target.mkdir(mode=0o555)
    place = READ_ONLY if os.access(target, os.W_OK) else str(target)
    ended = run(*PENDULUM, "--steps", "10", "--out", f"{place}/dump")
    assert_refused(ended, 3, f"cannot write {place}/dump: ", "name another place")


@exhaustive
def test_file_size_limit_keeps_complete_chunks(folder: Path) -> None:
    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (8_000, 8_000))

    asked = (*PENDULUM, "--steps", "2000", "--chunk", "100", "--keys", "observation,reward,done")
    assert_refused(
        run(*asked, "--out", "dump", before=limit), 3, "cannot write dump: file too large", "resume"
    )
    left = open_dump(folder / "dump")
    assert 0 < left.manifest.steps < 2000
    assert run("verify", "dump").code == 0
    assert run("rollout", "--resume", "--out", "dump").code == 0
    assert run(*asked, "--out", "whole").code == 0
    assert_same_dump(folder / "dump", folder / "whole")


@pytest.fixture
def tiny(folder: Path) -> Iterator[Path]:
    """Mount a file system of 200 KiB."""
    place = folder / "tiny"
    place.mkdir()
    mount = [require_program("mount"), "-t", "tmpfs", "-o", "size=200k", "tmpfs", str(place)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("no file system can be mounted here")
    yield place
    subprocess.run([require_program("umount"), str(place)], check=True)


@pytest.mark.programs
@exhaustive
def test_full_file_system_keeps_complete_chunks(tiny: Path) -> None:
    ended = run(*PENDULUM, "--steps", "20000", "--chunk", "200", "--out", "tiny/dump")
    assert_refused(ended, 3, "cannot write tiny/dump: no space left on device", "make room")
    assert open_dump(tiny / "dump").manifest.steps > 0
    assert run("verify", "tiny/dump").code == 0


@pytest.mark.parametrize(
    ("module", "message", "hint"),
    [
        (TensorDictModule(nn.Linear(3, 1), ["pixels"], ["action"]), "reads 'pixels'", "env has"),
        (TensorDictModule(nn.Linear(4, 1), ["observation"], ["action"]), "does not fit", "reads"),
        (TensorDictModule(nn.Linear(3, 2), ["observation"], ["action"]), "of shape (2,)", "action"),
        (
            TensorDictModule(nn.Linear(3, 1), ["observation"], ["act"]),
            "did not write 'action'",
            "out_keys",
        ),
        ({"weights": torch.zeros(3)}, "contains a dict, not a module", "torch.save(policy"),
        (b"no module at all", "contains no policy", "torch.save"),
    ],
    ids=["key", "input", "output", "no action", "dict", "rubbish"],
)
def test_incompatible_policy_file_is_refused(
    folder: Path, module: Any, message: str, hint: str
) -> None:
    if isinstance(module, bytes):
        Path("policy.pt").write_bytes(module)
    else:
        torch.save(module, "policy.pt")
    asked = (*PENDULUM, "--steps", "10", "--out", "dump", "--policy", "module:policy.pt")
    assert_refused(run(*asked), 2, "can run code", "--allow-code")
    assert_refused(run(*asked, "--allow-code"), 2, message, hint)
    assert not (folder / "dump").exists()


@exhaustive
def test_closed_pipe_is_not_an_error(dump: Path) -> None:
    for arguments in (("show", "./dump"), (*PENDULUM, "--steps", "30", "--out", "other")):
        assert_quiet_without_reader(arguments)
    assert open_dump(dump.parent / "other").manifest.complete


@exhaustive
def test_progress_only_on_terminals(folder: Path) -> None:
    ended = run(*LONG, "--out", "dump", "--format", "json")
    assert (ended.code, ended.err) == (0, "")
    assert json.loads(ended.out)["steps"] == 3000
    terminal, end = pty.openpty()
    out = os.memfd_create("out")
    child = start((*LONG, "--out", "again"), {1: out, 2: end})
    os.close(end)
    shown = b""
    while True:
        try:
            block = os.read(terminal, 4096)
        except OSError:
            break
        shown += block
    os.close(terminal)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    text = shown.decode()
    assert " of 3,000 steps" in text
    assert " steps/s  " in text
    assert " left" in text
    assert text.endswith("\r\x1b[K"), "the line is gone at the end"


def wait_for_steps(folder: Path, steps: int) -> None:
    """Wait until a dump has at least the given number of steps."""
    while True:
        try:
            if Manifest.load(folder).steps >= steps:
                return
        except OSError:
            pass
        time.sleep(0.002)


@exhaustive
def test_resumed_dump_equals_an_uninterrupted_one(folder: Path) -> None:
    assert run(*LONG, "--out", "whole").code == 0
    moments = random.Random(1)
    null = os.open(os.devnull, os.O_WRONLY)
    for number, how in enumerate((signal.SIGKILL, signal.SIGINT)):
        place = folder / str(number)
        err = os.memfd_create("err")
        child = start((*LONG, "--out", str(number)), {1: null, 2: err})
        wait_for_steps(place, moments.randrange(40, 2000))
        os.kill(child, how)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        assert code == (130 if how == signal.SIGINT else -how)
        os.lseek(err, 0, os.SEEK_SET)
        with open(err, encoding="utf-8") as stderr:
            message = f"{number} has {Manifest.load(place).steps:,} steps, --resume continues it"
            assert (message in stderr.read()) == (how == signal.SIGINT)
        assert run("verify", str(number)).code == 0
        assert run("rollout", "--resume", "--out", str(number)).code == 0
        assert_same_dump(place, folder / "whole")
    os.close(null)


@exhaustive
def test_second_writer_of_a_dump_is_refused(folder: Path) -> None:
    null = os.open(os.devnull, os.O_WRONLY)
    child = start((*LONG, "--out", "dump"), {1: null, 2: null})
    wait_for_steps(folder / "dump", 40)
    os.kill(child, signal.SIGSTOP)
    steps = Manifest.load(folder / "dump").steps
    said = (2, "another process is writing dump", "name another folder, or wait")
    assert_refused(run(*LONG, "--out", "dump"), *said)
    assert_refused(run(*LONG, "--out", "dump", "--force"), *said)
    assert_refused(run(*LONG, "--out", "dump", "--dry-run", "--force"), *said)
    assert_refused(run("rollout", "--resume", "--out", "dump"), *said)
    assert_refused(run("replay", "dump", "--t", "RewardSum", "--out", "dump", "--force"), *said)
    assert Manifest.load(folder / "dump").steps == steps
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    os.close(null)
    assert run("rollout", "--resume", "--out", "dump").code == 0
    assert Manifest.load(folder / "dump").steps == 3000


def test_reader_that_closes_the_pipe_early_is_not_an_error(folder: Path) -> None:
    reading, writing = os.pipe()
    err = os.memfd_create("err")
    asked = ("rollout", "--env", "CartPole-v1", "--steps", "60", "--out", "dump")
    child = start((*asked, "--format", "jsonl"), {1: writing, 2: err})
    os.close(writing)
    assert os.read(reading, 10) == b'{"schema_v'
    os.close(reading)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert os.fstat(err).st_size == 0
    os.close(err)
    assert open_dump(folder / "dump").manifest.complete

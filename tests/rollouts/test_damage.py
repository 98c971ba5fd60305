"""Every changed byte and every edited number of a dump is detected."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tdx import StorageError, TdxError, open_dump
from tdx.foundation.container import Container, seal
from tdx.rollouts import Goal, Manifest, list_dumps, resume, roll_out, verify
from tdx.rollouts.dump.episodes import EpisodeIndex
from tests.programs import exhaustive, sampled
from tests.rollouts.recordings import CutError, interrupt_after, record, request


def is_detected(folder: Path) -> bool:
    """Return True if verification refuses a dump or finds a problem."""
    try:
        return not verify(folder).is_fine
    except StorageError as error:
        return bool(error.hint)


def find_undetected_flips(
    folder: Path, file: Path, masks: tuple[int, ...], every: int = 1
) -> list[tuple[int, int]]:
    """Flip bits in each byte of a file in turn; return the undetected changes."""
    content = file.read_bytes()
    found = []
    for place in range(0, len(content), every):
        for mask in masks:
            changed = bytearray(content)
            changed[place] ^= mask
            file.write_bytes(changed)
            if not is_detected(folder):
                found.append((place, mask))
    file.write_bytes(content)
    return found


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Record a dump with a small manifest."""
    monkeypatch.setattr("tdx.rollouts.recording.request.package_versions", lambda: {"tdx": "0.1.0"})
    options: dict[str, Any] = {"keys": ("reward", "done"), "goal": Goal(steps=12)}
    record(tmp_path / "dump", "CartPole-v1", "StepCounter(max_steps=3)", chunk_steps=5, **options)
    assert verify(tmp_path / "dump").is_fine
    return tmp_path / "dump"


@pytest.mark.parametrize("name", ["manifest.json", "chunks.jsonl", "data/meta.json"])
@exhaustive
def test_every_changed_byte_is_detected(small: Path, name: str) -> None:
    assert find_undetected_flips(small, small / name, (0x20,), every=3) == []
    assert verify(small).is_fine


@exhaustive
def test_every_changed_byte_of_an_unfinished_dump_is_detected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tdx.rollouts.recording.request.package_versions", lambda: {"tdx": "0.1.0"})
    folder = tmp_path / "dump"
    asked = request("tdx/Pendulum", bare=True, keys=("reward",), goal=Goal(steps=12), chunk_steps=5)
    with pytest.raises(CutError):
        roll_out(asked, folder, on_chunk=interrupt_after(2))
    assert verify(folder).is_fine
    (state,) = (folder / "state").iterdir()
    assert find_undetected_flips(folder, folder / "chunks.jsonl", (1,)) == []
    assert find_undetected_flips(folder, state, (1,), every=199) == []


def read_index_lines(folder: Path) -> list[bytes]:
    """Return the lines of the index of a dump."""
    return (folder / "chunks.jsonl").read_bytes().splitlines(keepends=True)


@pytest.mark.parametrize(
    "change",
    [
        lambda lines: lines[1:],
        lambda lines: [lines[0], *lines[2:]],
        lambda lines: [lines[1], lines[0], *lines[2:]],
        lambda lines: [*lines, lines[-1]],
        lambda lines: lines[:-1],
        lambda lines: [*lines[:-1], lines[-1][:-1]],
        lambda lines: [*lines, b'{"steps": 1'],
        lambda lines: [],
    ],
    ids=["first", "middle", "order", "twice", "last", "newline", "more", "none"],
)
def test_removed_or_moved_lines_are_detected(
    small: Path, change: Callable[[list[bytes]], list[bytes]]
) -> None:
    (small / "chunks.jsonl").write_bytes(b"".join(change(read_index_lines(small))))
    with pytest.raises(StorageError) as raised:
        verify(small)
    assert raised.value.hint


def test_index_of_another_dump_is_detected(small: Path, tmp_path: Path) -> None:
    options: dict[str, Any] = {"keys": ("reward", "done"), "goal": Goal(steps=12)}
    record(tmp_path / "other", "CartPole-v1", "StepCounter(max_steps=4)", chunk_steps=5, **options)
    (small / "chunks.jsonl").write_bytes((tmp_path / "other" / "chunks.jsonl").read_bytes())
    with pytest.raises(StorageError, match=r"line 1 of .*chunks.jsonl was changed"):
        open_dump(small)


def record_unfinished_dump(folder: Path) -> Manifest:
    """Record an unfinished dump of two chunks."""
    with pytest.raises(CutError):
        roll_out(request("Pendulum-v1", "RewardSum"), folder, on_chunk=interrupt_after(2))
    return Manifest.load(folder)


@pytest.mark.parametrize("left", [b'{"steps": 25, "raw', b"{", b'{"steps": 25\0\0\0', b"\0\0\0"])
@exhaustive
def test_incomplete_last_line_is_ignored(tmp_path: Path, left: bytes) -> None:
    before = record_unfinished_dump(tmp_path / "dump")
    with (tmp_path / "dump" / "chunks.jsonl").open("ab") as file:
        file.write(left)
    assert Manifest.load(tmp_path / "dump") == before
    assert verify(tmp_path / "dump").is_fine
    resume(tmp_path / "dump")
    record(tmp_path / "whole", "Pendulum-v1", "RewardSum")
    assert read_index_lines(tmp_path / "dump")[-1] == read_index_lines(tmp_path / "whole")[-1]
    assert Manifest.load(tmp_path / "dump") == Manifest.load(tmp_path / "whole")


@pytest.mark.parametrize("left", [b"steps", b'{"steps": 25}\n', b"\n"])
def test_garbage_after_the_index_is_refused(tmp_path: Path, left: bytes) -> None:
    record_unfinished_dump(tmp_path / "dump")
    with (tmp_path / "dump" / "chunks.jsonl").open("ab") as file:
        file.write(left)
    with pytest.raises(StorageError, match=r"line 3 of .*chunks.jsonl was changed"):
        open_dump(tmp_path / "dump")


def test_changed_newline_of_the_last_line_is_refused(tmp_path: Path) -> None:
    record_unfinished_dump(tmp_path / "dump")
    file = tmp_path / "dump" / "chunks.jsonl"
    file.write_bytes(file.read_bytes()[:-1] + b" ")
    with pytest.raises(StorageError, match=r"line 2 of .*chunks.jsonl was changed"):
        open_dump(tmp_path / "dump")


@pytest.mark.parametrize(
    ("column", "value", "message"),
    [
        ("return", 99.0, "the return of episode 0 is 99.0 in the index, 3.0 in the data"),
        ("terminated", 1, "the terminated of episode 0 is 1 in the index, 0 in the data"),
    ],
)
def test_episodes_are_compared_with_the_data(
    tmp_path: Path, column: str, value: Any, message: str
) -> None:
    record(tmp_path / "dump", "CartPole-v1", "StepCounter(max_steps=3)")
    manifest = Manifest.load(tmp_path / "dump")
    manifest.episodes._columns[column][0] = value
    with Container.open(tmp_path / "dump") as root:
        manifest.save(root)
    (problem,) = verify(tmp_path / "dump").problems
    assert (problem.kind, problem.message) == ("episodes", message)


def test_episode_boundaries_are_compared_with_the_data(tmp_path: Path) -> None:
    record(tmp_path / "dump", "CartPole-v1", "StepCounter(max_steps=3)", num_envs=2)
    manifest = Manifest.load(tmp_path / "dump")
    rows = manifest.episodes.column("row")
    wrong = EpisodeIndex(2)
    columns = {name: manifest.episodes.column(name) for name in manifest.episodes._columns}
    columns["row"] = 1 - rows
    wrong.extend(columns, manifest.steps, manifest.episodes.running(), "test")
    manifest.episodes = wrong
    with Container.open(tmp_path / "dump") as root:
        manifest.save(root)
    kinds = {problem.kind for problem in verify(tmp_path / "dump").problems}
    assert kinds == {"episodes"}


def reseal(folder: Path, change: Callable[[list[dict[str, Any]]], None]) -> None:
    """Change the lines of an index and update the checksums."""
    place = Manifest.load(folder).start()
    lines = [json.loads(line) for line in read_index_lines(folder)]
    change(lines)
    check, found = place.check, []
    for line in lines:
        line.pop("check")
        text, check = seal(line, check)
        found.append(text)
    (folder / "chunks.jsonl").write_bytes(b"".join(found))


def set_value(*path: Any, value: Any) -> Callable[[list[dict[str, Any]]], None]:
    """Return a function that sets one value in the lines."""

    def change(lines: list[Any]) -> None:
        inner: Any = lines
        for each in path[:-1]:
            inner = inner[each]
        inner[path[-1]] = value

    return change


LEAF = (0, "tracks", "data", "leaves", 0)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ((0, "episodes", "row", 0), 99),
        ((0, "episodes", "row", 0), -1),
        ((0, "episodes", "row", 0), 2**70),
        ((0, "episodes", "length", 0), 0),
        ((0, "episodes", "length", 0), 26),
        ((0, "episodes", "length", 0), 2**62),
        ((0, "episodes", "length"), [3]),
        ((0, "episodes", "terminated", 0), 2),
        ((0, "episodes", "return", 0), "many"),
        ((0, "episodes"), None),
        ((1, "running"), [0.0, 0.0]),
        ((1, "running"), None),
        ((0, "steps"), -1),
        ((0, "steps"), 2**63),
        ((0, "steps"), 25.0),
        ((0, "steps"), True),
        ((0, "crc32"), []),
        ((0, "crc32", 0), "00"),
        ((1, "state", "file"), "../manifest.json"),
        ((1, "state", "file"), "/etc/passwd"),
        ((1, "state", "file"), ""),
        ((1, "state"), 3),
        ((1, "tracks"), {"data": {}}),
        ((0, "tracks", "other"), {"leaves": [], "groups": []}),
        ((*LEAF, "shape"), [10**12, 10**12]),
        ((*LEAF, "shape"), [-1]),
        ((*LEAF, "shape"), 3),
        ((*LEAF, "dtype"), "qint8"),
        ((*LEAF, "dtype"), "float33"),
        ((*LEAF, "key"), ["..", "x"]),
        ((*LEAF, "key"), []),
        ((*LEAF, "key"), ["a/b"]),
        ((*LEAF, "key"), ["next", "reward"]),
        ((*LEAF, "key"), ["next"]),
        ((0, "tracks", "data", "groups"), [{"key": ["next"], "batch": [7]}]),
        ((0, "transforms"), []),
    ],
    ids=str,
)
@sampled(5)
def test_invalid_lines_are_refused(tmp_path: Path, path: tuple[Any, ...], value: Any) -> None:
    folder = tmp_path / "dump"
    with pytest.raises(CutError):
        roll_out(
            request("Pendulum-v1", "StepCounter(max_steps=3)"), folder, on_chunk=interrupt_after(2)
        )
    reseal(folder, set_value(*path, value=value))
    for use in (open_dump, verify, resume):
        with pytest.raises(StorageError) as raised:
            use(folder)
        assert raised.value.hint
    (listed,) = list_dumps(tmp_path)
    assert listed.problem


def change_manifest(folder: Path, **changes: Any) -> None:
    """Change the manifest and update the checksums in the manifest and the index."""
    header = json.loads((folder / "manifest.json").read_text())
    lines = [json.loads(line) for line in read_index_lines(folder)]
    header = {**header, **changes}
    del header["check"]
    static = {name: each for name, each in header.items() if name not in ("complete", "index")}
    _, check = seal(static)
    found = []
    for line in lines:
        line.pop("check")
        text, check = seal(line, check)
        found.append(text)
    index = b"".join(found)
    (folder / "chunks.jsonl").write_bytes(index)
    if header["complete"]:
        header["index"] = {"lines": len(lines), "bytes": len(index), "check": f"{check:08x}"}
    (folder / "manifest.json").write_bytes(seal(header, indent=1)[0])


@pytest.mark.parametrize(
    "changes",
    [
        {"batch_size": [10**10]},
        {"batch_size": [10**6, 10**6, 10**6, 10**6]},
        {"batch_size": [1] * 100},
        {"batch_size": [-1]},
        {"batch_size": "many"},
        {"batch_size": [2.5]},
        {"seed": 2**64},
        {"seed": "one"},
        {"goal": {"steps": -1, "episodes": None}},
        {"goal": None},
        {"chunk_steps": 0},
        {"keys": 3},
        {"pipeline": 3},
        {"policy": {"name": None, "sha256": None}},
        {"specs": [3]},
        {"specs": [{"part": "done"}]},
        {"flags": {"rewards": [[]], "ends": []}},
        {"versions": []},
        {"source": 1},
        {"complete": "yes"},
        {"keeps_raw": None},
        {"version": 1},
        {"version": 3},
        {"version": [1]},
        {"format": "zip"},
    ],
    ids=str,
)
def test_invalid_manifests_are_refused(tmp_path: Path, changes: dict[str, Any]) -> None:
    folder = tmp_path / "dump"
    record(folder, "Pendulum-v1", "RewardSum", goal=Goal(steps=30))
    change_manifest(folder, **changes)
    for use in (open_dump, verify, resume):
        with pytest.raises(StorageError) as raised:
            use(folder)
        assert raised.value.hint


def test_change_manifest_keeps_other_fields(tmp_path: Path) -> None:
    record(tmp_path / "dump", "Pendulum-v1", "RewardSum", goal=Goal(steps=30))
    before = Manifest.load(tmp_path / "dump")
    change_manifest(tmp_path / "dump")
    assert Manifest.load(tmp_path / "dump") == before
    change_manifest(tmp_path / "dump", seed=9)
    assert Manifest.load(tmp_path / "dump").seed == 9


def test_deeply_nested_manifest_is_refused(tmp_path: Path) -> None:
    record(tmp_path / "dump", "Pendulum-v1", "RewardSum", goal=Goal(steps=30))
    (tmp_path / "dump" / "manifest.json").write_text("[" * 100_000)
    with pytest.raises(StorageError, match="nested more than"):
        open_dump(tmp_path / "dump")


def test_more_steps_than_in_the_files_are_refused(tmp_path: Path) -> None:
    folder = tmp_path / "dump"
    with pytest.raises(CutError):
        roll_out(request("Pendulum-v1", "RewardSum"), folder, on_chunk=interrupt_after(2))
    reseal(folder, set_value(1, "steps", value=2**40))
    with pytest.raises(StorageError, match=r"bytes, .* are needed"):
        open_dump(folder)
    assert {each.kind for each in verify(folder).problems} == {"short"}
    with pytest.raises(TdxError):
        resume(folder)


def test_dump_with_changed_chunk_size_is_not_resumed(tmp_path: Path) -> None:
    folder = tmp_path / "dump"
    with pytest.raises(CutError):
        roll_out(request("Pendulum-v1", "RewardSum"), folder, on_chunk=interrupt_after(2))
    change_manifest(folder, chunk_steps=2**48)
    with pytest.raises(StorageError, match="has chunks of 25 steps") as raised:
        resume(folder)
    assert raised.value.hint


def test_bounds_of_a_wrong_shape_are_reported(tmp_path: Path) -> None:
    record(tmp_path / "dump", "Pendulum-v1", "RewardSum", goal=Goal(steps=30))
    header = json.loads((tmp_path / "dump" / "manifest.json").read_text())
    for spec in header["specs"]:
        spec["low"] = [[1.0], [2.0, 3.0]]
    change_manifest(tmp_path / "dump", specs=header["specs"])
    problems = verify(tmp_path / "dump").problems
    assert problems
    assert {each.kind for each in problems} == {"spec"}


def test_episodes_of_a_batch_are_in_order() -> None:
    index, again = EpisodeIndex(3), EpisodeIndex(3)
    random = np.random.default_rng(0)
    for steps in (5, 1, 40):
        ends = torch.from_numpy(random.random((3, steps)) < 0.3)
        rewards = torch.from_numpy(random.normal(size=(3, steps)))
        columns = index.add(rewards, ends, ends)
        again.extend(columns, index.steps, index.running(), "test")
    assert index == again
    assert len(index) > 10
    assert [each.start + each.length for each in index if not each.finished] == [46] * (
        sum(not each.finished for each in index)
    )
    assert EpisodeIndex.from_dict(index.to_dict(), 3, 46) == index

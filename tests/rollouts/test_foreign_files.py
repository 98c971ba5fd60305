"""Import files that tdx did not export."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from tdx import import_dump, open_dump
from tdx.foundation.errors import ArgumentError, StorageError, UnknownNameError
from tdx.rollouts import look_at, verify

STEPS = 30


def transitions() -> dict[str, Any]:
    """Return transitions with the column names of D4RL."""
    generator = np.random.default_rng(0)
    ends = np.arange(1, STEPS + 1) % 10 == 0
    return {
        "observations": generator.normal(size=(STEPS, 3)).astype(np.float32),
        "actions": generator.normal(size=(STEPS, 2)),
        "rewards": generator.normal(size=STEPS).astype(np.float32),
        "terminals": ends & (np.arange(STEPS) < 15),
        "timeouts": ends & (np.arange(STEPS) >= 15),
    }


def assert_has_columns(folder: Path, columns_in: dict[str, Any]) -> None:
    """Check that a dump has the columns, with the names of tdx, and their episodes."""
    dump = open_dump(folder)
    data = dump.data
    np.testing.assert_array_equal(data["observation"].numpy(), columns_in["observations"])
    np.testing.assert_array_equal(data["action"].numpy(), columns_in["actions"])
    rewards = columns_in["rewards"].reshape(STEPS, 1)
    np.testing.assert_array_equal(data["next", "reward"].numpy(), rewards)
    assert data["next", "done"].shape == (STEPS, 1)
    found = [(each.start, each.length, each.terminated) for each in dump.manifest.episodes]
    assert found == [(0, 10, True), (10, 10, False), (20, 10, False)]
    assert verify(folder).is_fine
    assert look_at(dump).returns is not None


def test_import_of_npz(tmp_path: Path) -> None:
    np.savez_compressed(tmp_path / "d4rl.npz", **transitions())
    imported = import_dump(tmp_path / "d4rl.npz", tmp_path / "dump", env="Hopper-v5")
    assert_has_columns(tmp_path / "dump", transitions())
    assert imported.summary["env"] == "Hopper-v5"
    assert "inferred from the values" in imported.notes[0]
    assert "next.done is computed from" in imported.notes[1]
    unknown = import_dump(tmp_path / "d4rl.npz", tmp_path / "other")
    assert unknown.summary["env"] == "unknown"
    assert "--env" in unknown.notes[1]


def test_import_of_hdf5(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "d4rl.hdf5", "w") as file:
        for name, values in transitions().items():
            file[name] = values
    import_dump(tmp_path / "d4rl.hdf5", tmp_path / "dump")
    assert_has_columns(tmp_path / "dump", transitions())


def test_import_of_zarr(tmp_path: Path) -> None:
    zarr = pytest.importorskip("zarr")
    group = zarr.open_group(tmp_path / "d4rl", mode="w")
    for name, values in transitions().items():
        group[name] = values
    import_dump(tmp_path / "d4rl", tmp_path / "dump")
    assert_has_columns(tmp_path / "dump", transitions())


def test_import_of_safetensors(tmp_path: Path) -> None:
    numpy = pytest.importorskip("safetensors.numpy")
    numpy.save_file(transitions(), tmp_path / "d4rl.safetensors")
    import_dump(tmp_path / "d4rl.safetensors", tmp_path / "dump")
    assert_has_columns(tmp_path / "dump", transitions())


def test_import_of_a_pandas_table(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    columns_in = transitions()
    frame = pandas.DataFrame({name: list(values) for name, values in columns_in.items()})
    frame[frame.index < 99].to_parquet(tmp_path / "d4rl.parquet")
    import_dump(tmp_path / "d4rl.parquet", tmp_path / "dump")
    assert_has_columns(tmp_path / "dump", columns_in)
    frame.assign(actions=[[0.0]] * 7 + [None] * 23).to_parquet(tmp_path / "holes.parquet")
    with pytest.raises(StorageError, match=r"'actions' .* has null or uneven rows"):
        import_dump(tmp_path / "holes.parquet", tmp_path / "other")


def test_import_of_jsonl(tmp_path: Path) -> None:
    columns_in = transitions()
    columns = {name: values.tolist() for name, values in columns_in.items()}
    rows = [{name: values[step] for name, values in columns.items()} for step in range(STEPS)]
    (tmp_path / "d4rl.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    import_dump(tmp_path / "d4rl.jsonl", tmp_path / "dump")
    assert_has_columns(tmp_path / "dump", columns_in)
    assert open_dump(tmp_path / "dump").data["observation"].dtype is torch.float64
    rows[3]["rewards"] = "much"
    (tmp_path / "words.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(StorageError, match=r"words.jsonl:4: 'rewards' differs from"):
        import_dump(tmp_path / "words.jsonl", tmp_path / "other")


def test_import_of_minari(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    minari = pytest.importorskip("minari")
    pytest.importorskip("h5py")
    from minari.data_collector import EpisodeBuffer

    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    space = spaces.Box(-np.inf, np.inf, (2,), np.float32)
    generator = np.random.default_rng(0)
    episodes = [
        EpisodeBuffer(
            observations={"arm": {"angle": generator.normal(size=(length + 1, 2))}},
            actions=generator.integers(0, 4, length),
            rewards=generator.normal(size=length).tolist(),
            terminations=[False] * (length - 1) + [number == 0],
            truncations=[False] * length,
            infos={"seen": np.zeros(length + 1)},
        )
        for number, length in enumerate((5, 8))
    ]
    with pytest.warns(UserWarning, match=r"\w"):
        minari.create_dataset_from_buffers(
            "theirs-v0",
            episodes,
            observation_space=spaces.Dict({"arm": spaces.Dict({"angle": space})}),
            action_space=spaces.Discrete(4),
        )
    imported = import_dump(tmp_path / "theirs-v0", tmp_path / "dump", env="Reacher-v5")
    assert any("infos are left out" in note for note in imported.notes)
    data = open_dump(tmp_path / "dump").data
    wanted = [episode.observations["arm"]["angle"] for episode in episodes]
    angles = np.concatenate([each[:-1] for each in wanted])
    np.testing.assert_array_equal(data["arm", "angle"].numpy(), angles)
    following = np.concatenate([each[1:] for each in wanted])
    np.testing.assert_array_equal(data["next", "arm", "angle"].numpy(), following)
    assert data["action"].shape == (13,)
    found = list(open_dump(tmp_path / "dump").manifest.episodes)
    assert [(each.length, each.terminated) for each in found] == [(5, True), (8, False)]


def test_non_numeric_columns_are_skipped(tmp_path: Path) -> None:
    extra = {"name": np.array(["a"] * STEPS), "version": np.array(3), "objects": np.array([{}])}
    np.savez(tmp_path / "x.npz", **{**transitions(), **extra})
    rows = [{"obs": [step, 0.5], "text": "a", "mixed": [1, "b"], "none": None} for step in range(3)]
    (tmp_path / "x.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    imported = import_dump(tmp_path / "x.npz", tmp_path / "dump")
    assert any("left out" in note and "name, version, objects" in note for note in imported.notes)
    assert_has_columns(tmp_path / "dump", transitions())
    imported = import_dump(tmp_path / "x.jsonl", tmp_path / "lines")
    assert any("left out" in note and "text, mixed, none" in note for note in imported.notes)
    assert set(open_dump(tmp_path / "lines").data.keys()) == {"observation"}


def test_non_numeric_columns_of_a_table_are_skipped(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    pq = pytest.importorskip("pyarrow.parquet")
    columns_in = transitions()
    columns = {name: pa.array(list(values)) for name, values in columns_in.items()}
    columns["task"] = pa.array(["reach"] * STEPS).dictionary_encode()
    columns["words"] = pa.array([["a", "b"]] * STEPS)
    columns["image"] = pa.array([{"path": "x.png"}] * STEPS)
    columns["when"] = pa.array(range(STEPS), pa.timestamp("us"))
    pq.write_table(pa.table(columns), tmp_path / "x.parquet")
    imported = import_dump(tmp_path / "x.parquet", tmp_path / "dump")
    assert any("task, words, image, when" in note for note in imported.notes)
    assert_has_columns(tmp_path / "dump", columns_in)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"observations": np.zeros((4, 2)), "rewards": np.zeros(3)}, "'rewards' has 3 rows and"),
        ({"name": np.array(["a", "b"])}, "has no numeric columns"),
        ({"reward": np.zeros(3), "rewards": np.zeros(3)}, r"are named 'next.reward'"),
        ({"seed": np.array(3)}, "has no"),
        ({"observations": np.zeros((0, 2))}, "has no steps"),
        ({}, "has no numeric columns"),
    ],
    ids=["lengths", "text", "twice", "scalar", "empty", "nothing"],
)
def test_files_without_a_rollout_are_refused(
    tmp_path: Path, columns: dict[str, Any], message: str
) -> None:
    np.savez(tmp_path / "x.npz", **columns)
    with pytest.raises(StorageError, match=message) as refused:
        import_dump(tmp_path / "x.npz", tmp_path / "dump")
    assert refused.value.hint
    assert not (tmp_path / "dump").exists()


def test_arrays_of_objects_are_never_unpickled(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", reward=np.array([{}, {}], dtype=object))
    with pytest.raises(StorageError, match="has no numeric columns"):
        import_dump(tmp_path / "x.npz", tmp_path / "dump")


def test_files_of_unsupported_formats_are_refused(tmp_path: Path) -> None:
    (tmp_path / "video.mp4").touch()
    with pytest.raises(UnknownNameError, match="mp4 cannot be imported"):
        import_dump(tmp_path / "video.mp4", tmp_path / "dump")
    (tmp_path / "data.bin").touch()
    with pytest.raises(ArgumentError, match="cannot be detected"):
        import_dump(tmp_path / "data.bin", tmp_path / "dump")
    with pytest.raises(ArgumentError, match="zarr is a folder"):
        import_dump(tmp_path / "data.bin", tmp_path / "dump", format="zarr")
    for name in ("npz", "safetensors", "hdf5", "parquet", "jsonl"):
        (tmp_path / "data.bin").write_bytes(b"no data set at all")
        with pytest.raises(StorageError, match=r"data\.bin"):
            import_dump(tmp_path / "data.bin", tmp_path / "dump", format=name)
    with pytest.raises(StorageError, match="does not exist"):
        import_dump(tmp_path / "none.npz", tmp_path / "dump")


@pytest.mark.parametrize("note", ["[]", "{", '{"export": 1}', '{"export": 1, "manifest": {}}'])
def test_damaged_metadata_is_refused(tmp_path: Path, note: str) -> None:
    np.savez(tmp_path / "x.npz", reward=np.zeros(3), tdx=np.array(note.encode()))
    with pytest.raises(StorageError, match=r"the metadata of tdx in .* is invalid"):
        import_dump(tmp_path / "x.npz", tmp_path / "dump")


def test_export_of_a_newer_release_is_refused(tmp_path: Path) -> None:
    note = np.array(json.dumps({"export": 9}).encode())
    np.savez(tmp_path / "x.npz", reward=np.zeros(3), tdx=note)
    with pytest.raises(StorageError, match="an export of version 9") as refused:
        import_dump(tmp_path / "x.npz", tmp_path / "dump")
    assert "newer release" in str(refused.value.hint)

"""Exports, opened with the library of the format and imported again."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from tdx import Dump, export_dump, import_dump, open_dump
from tdx.foundation.container import Container
from tdx.foundation.errors import (
    ArgumentError,
    MissingPackageError,
    OutputError,
    StorageError,
    UnknownNameError,
)
from tdx.rollouts import Goal, Manifest, export_formats, verify
from tdx.rollouts.formats.registry import find_format, load_exporter
from tests.programs import exhaustive, sampled
from tests.rollouts.export_dumps import create_dump_of_all_dtypes, require_format
from tests.rollouts.recordings import (
    CHAIN,
    assert_same_bits,
    assert_same_dump,
    bits,
    hash_tree,
    in_memory,
    record,
)

BACK = [each.name for each in export_formats() if each.can_import]
WITH_RAW = [each.name for each in export_formats() if each.holds_raw]


@pytest.fixture(scope="module")
def dumps() -> Iterator[Path]:
    """Record dumps of several kinds."""
    with in_memory() as place:
        folder = Path(place)
        record(folder / "cart")
        record(folder / "batch", "Pendulum-v1", *CHAIN, num_envs=3, batching="serial", raw=True)
        record(
            folder / "pixels",
            *("CartPole-v1", "StepCounter(max_steps=4)"),
            from_pixels=True,
            goal=Goal(steps=10),
        )
        create_dump_of_all_dtypes(folder / "odd")
        create_dump_of_all_dtypes(folder / "odd_batch", (2, 3))
        yield folder


@pytest.mark.parametrize("name", BACK)
@pytest.mark.parametrize("kind", ["batch", "odd", "odd_batch"])
@sampled(5)
def test_imported_export_equals_the_dump(dumps: Path, tmp_path: Path, kind: str, name: str) -> None:
    require_format(name)
    exported = export_dump(dumps / kind, tmp_path / "file", to=name)
    assert exported.written
    assert (exported.steps, exported.format) == (open_dump(dumps / kind).manifest.steps, name)
    imported = import_dump(exported.path, tmp_path / "again", format=name)
    assert imported.notes == ()
    assert verify(tmp_path / "again").is_fine
    if kind == "batch" and name not in WITH_RAW:
        assert any("--raw" in note for note in exported.notes)
        assert open_dump(tmp_path / "again").raw is None
        assert_same_bits(open_dump(tmp_path / "again").data, open_dump(dumps / kind).data)
        return
    assert_same_dump(tmp_path / "again", dumps / kind)


def rollout(dumps: Path, kind: str) -> tuple[Dump, Any]:
    """Return a dump and a function that returns an entry with the time dim first."""
    dump = open_dump(dumps / kind)
    dims = len(dump.manifest.batch_size)
    return dump, lambda key: dump.data.get(key).movedim(dims, 0).numpy()


def test_numpy_reads_npz(dumps: Path, tmp_path: Path) -> None:
    export_dump(dumps / "batch", tmp_path / "b.npz")
    _, wanted = rollout(dumps, "batch")
    with np.load(tmp_path / "b.npz", allow_pickle=False) as file:
        np.testing.assert_array_equal(file["observation"], wanted("observation"))
        np.testing.assert_array_equal(file["next.reward"], wanted(("next", "reward")))
        assert file["next.done"].dtype == np.bool_
        assert json.loads(file["tdx"].item())["manifest"]["seed"] == 3
        assert file["raw/next.observation"].shape[:2] == (130, 3)


def test_safetensors_library_reads_the_export(dumps: Path, tmp_path: Path) -> None:
    safetensors = pytest.importorskip("safetensors.torch")
    export_dump(dumps / "odd_batch", tmp_path / "o.safetensors")
    dump, _ = rollout(dumps, "odd_batch")
    found = safetensors.load_file(tmp_path / "o.safetensors")
    for name in ("bfloat16", "float16", "uint32", "complex64", "picture", "special_float32"):
        wanted = dump.data.get(name).movedim(2, 0)
        assert (found[name].dtype, found[name].shape) == (wanted.dtype, wanted.shape)
        assert torch.equal(bits(found[name]), bits(wanted))
    assert found["agents.position"].shape == (23, 2, 3, 3, 2)


def test_h5py_reads_hdf5(dumps: Path, tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    export_dump(dumps / "batch", tmp_path / "b.h5")
    _, wanted = rollout(dumps, "batch")
    with h5py.File(tmp_path / "b.h5") as file:
        np.testing.assert_array_equal(file["data/next/reward"][:], wanted(("next", "reward")))
        assert file["data/next/done"].dtype == np.bool_
        assert file["raw/next/observation"].shape[0] == 130
        assert json.loads(file["tdx"][()])["manifest"]["policy"]["name"] == "random"


def test_zarr_library_reads_the_export(dumps: Path, tmp_path: Path) -> None:
    zarr = pytest.importorskip("zarr")
    export_dump(dumps / "batch", tmp_path / "b.zarr")
    _, wanted = rollout(dumps, "batch")
    group = zarr.open_group(tmp_path / "b.zarr", mode="r")
    np.testing.assert_array_equal(group["data/next/reward"][:], wanted(("next", "reward")))
    assert group["data/next/done"].dtype == np.bool_
    assert group.attrs["tdx"]["manifest"]["batch_size"] == [3]
    assert group.metadata.zarr_format == 3


def test_pyarrow_and_pandas_read_parquet(dumps: Path, tmp_path: Path) -> None:
    pq = pytest.importorskip("pyarrow.parquet")
    pandas = pytest.importorskip("pandas")
    export_dump(dumps / "batch", tmp_path / "b.parquet")
    dump, wanted = rollout(dumps, "batch")
    table = pq.read_table(tmp_path / "b.parquet")
    assert table.column_names[:3] == ["env", "episode", "step"]
    flat = table["observation"].combine_chunks().flatten().to_numpy()
    np.testing.assert_array_equal(flat.reshape(130, 3, -1), wanted("observation"))
    frame = pandas.read_parquet(tmp_path / "b.parquet")
    assert frame["next.reward"].dtype == np.float32
    assert frame["next.done"].dtype == np.bool_
    rewards = frame["next.reward"].to_numpy().reshape(130, 3, 1)
    np.testing.assert_array_equal(rewards, wanted(("next", "reward")))
    for number, episode in enumerate(dump.manifest.episodes):
        rows = frame[frame["episode"] == number]
        assert (rows["env"] == episode.row).all()
        assert rows["step"].tolist() == list(range(episode.length))
        assert rows["next.reward"].astype(float).sum() == pytest.approx(episode.total_reward)


def test_jsonl_numbers_are_exact(dumps: Path, tmp_path: Path) -> None:
    export_dump(dumps / "odd", tmp_path / "o.jsonl")
    dump, wanted = rollout(dumps, "odd")
    lines = [json.loads(line) for line in (tmp_path / "o.jsonl").read_text().splitlines()]
    assert len(lines) == 23
    assert [line for line in lines if "manifest" in str(line.get("tdx_"))] == lines[:1]
    special = ["nan", "inf", "-inf", -0.0, 1.401298464324817e-45, float(np.float32(0.1))]
    assert lines[0]["special_float32"] == special
    rewards = np.array([line["next"]["reward"] for line in lines], np.float32)
    np.testing.assert_array_equal(rewards, wanted(("next", "reward")))
    assert lines[5]["agents"]["position"] == dump.data["agents", "position"][5].tolist()


@exhaustive
def test_minari_library_reads_the_export(
    dumps: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    minari = pytest.importorskip("minari")
    require_format("minari")
    export_dump(dumps / "pixels", tmp_path / "pixels-v3", to="minari")
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    dataset = minari.load_dataset("pixels-v3")
    dump, _ = rollout(dumps, "pixels")
    data = dump.data
    episodes = list(dump.manifest.episodes)
    assert (dataset.total_episodes, dataset.total_steps) == (len(episodes), 10)
    assert dataset.env_spec.id == "CartPole-v1"
    assert dataset.action_space == spaces.Discrete(2)
    for found, each in zip(dataset.iterate_episodes(), episodes, strict=True):
        stop = each.start + each.length
        root = data["pixels"][each.start : stop].numpy()
        last = data["next", "pixels"][stop - 1 : stop].numpy()
        np.testing.assert_array_equal(found.observations, np.concatenate([root, last]))
        assert found.actions.tolist() == data["action"][each.start : stop].argmax(-1).tolist()
        rewards = data["next", "reward"][each.start : stop, 0].numpy()
        np.testing.assert_array_equal(found.rewards, rewards)
        assert (
            found.truncations.tolist() == data["next", "truncated"][each.start : stop, 0].tolist()
        )
        assert found.infos["next.step_count"].shape == (each.length, 1)


def film(dumps: Path) -> list[Any]:
    """Return the frames of all episodes."""
    data, frames = open_dump(dumps / "pixels"), []
    for each in data.manifest.episodes:
        stop = each.start + each.length
        frames += list(data.data["pixels"][each.start : stop].numpy())
        frames.append(data.data["next", "pixels"][stop - 1].numpy())
    return frames


@exhaustive
def test_mp4_is_lossless(dumps: Path, tmp_path: Path) -> None:
    av = pytest.importorskip("av")
    exported = export_dump(dumps / "pixels", tmp_path / "film.mp4", fps=12)
    assert "lossless" in exported.notes[0]
    with av.open(str(tmp_path / "film.mp4")) as file:
        shown = [frame.to_ndarray(format="rgb24") for frame in file.decode(video=0)]
        assert file.streams.video[0].average_rate == 12
    np.testing.assert_array_equal(np.stack(shown), np.stack(film(dumps)))
    small = export_dump(dumps / "pixels", tmp_path / "small.mp4", lossy=True, episodes=[1])
    assert "lossy" in small.notes[0]
    with av.open(str(tmp_path / "small.mp4")) as file:
        assert file.streams.video[0].codec_context.pix_fmt == "yuv420p"
        assert len(list(file.decode(video=0))) == 5


def gif_frames(image: Any, path: str | Path, milliseconds: int) -> list[Any]:
    """Return the frames of a GIF; a frame with a longer duration is repeated."""
    found = []
    with image.open(path) as file:
        for number in range(file.n_frames):
            file.seek(number)
            found += [np.array(file.convert("RGB"))] * (file.info["duration"] // milliseconds)
    return found


def test_gif_has_every_frame(dumps: Path, tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    exported = export_dump(dumps / "pixels", tmp_path / "films", to="gif", split=True, fps=25)
    assert exported.notes == ("lossless: no frame has more than 256 colors",)
    frames = film(dumps)
    names = ["episode_0000.gif", "episode_0001.gif", "episode_0002.gif"]
    assert sorted(path.name for path in (tmp_path / "films").iterdir()) == names
    shown = gif_frames(image, tmp_path / "films" / names[0], 40)
    np.testing.assert_array_equal(np.stack(shown), np.stack(frames[:5]))
    export_dump(dumps / "pixels", tmp_path / "one", to="gif", split=True, episodes=[2])
    assert [path.name for path in (tmp_path / "one").iterdir()] == names[2:]
    export_dump(dumps / "odd", tmp_path / "odd.gif", keys=["picture"])


@pytest.mark.parametrize(
    ("stage", "shape"),
    [
        ("ToTensorImage", (3, 400, 600)),
        ("GrayScale", (1, 400, 600)),
        ('CatFrames(2, dim=-3, in_keys=["pixels"])', (6, 400, 600)),
    ],
)
def test_pixels_of_transforms_are_exported_as_images(
    tmp_path: Path, stage: str, shape: tuple[int, ...]
) -> None:
    image = pytest.importorskip("PIL.Image")
    stages = dict.fromkeys(["ToTensorImage", stage])
    goal = Goal(steps=2)
    record(tmp_path / "dump", "CartPole-v1", *stages, from_pixels=True, goal=goal)
    plain = record(tmp_path / "plain", "CartPole-v1", bare=True, from_pixels=True, goal=goal)
    assert tuple(open_dump(tmp_path / "dump").data["pixels"].shape[1:]) == shape
    exported = export_dump(tmp_path / "dump", to="gif", fps=50)
    shown = gif_frames(image, exported.path, 20)[1]
    wanted = open_dump(tmp_path / "plain").data["pixels"][1].numpy()
    if stage == "GrayScale":
        assert np.ptp(shown, axis=-1).max() == 0
    else:
        np.testing.assert_array_equal(shown, wanted)
    assert any("newest" in note for note in exported.notes) == stage.startswith("CatFrames")
    assert plain.steps == 2


@pytest.mark.parametrize("name", [each.name for each in export_formats()])
def test_dry_run_tells_what_is_written(dumps: Path, tmp_path: Path, name: str) -> None:
    require_format(name)
    path = tmp_path / f"file{find_format(name).suffixes[0]}"
    planned = export_dump(dumps / "pixels", path, to=name, dry_run=True)
    assert (planned.format, planned.written, path.exists()) == (name, False, False)
    exported = export_dump(dumps / "pixels", path, to=name)
    assert exported.written
    assert path.is_dir() == find_format(name).is_folder
    assert exported.entries == planned.entries


@pytest.mark.parametrize("name", BACK)
def test_only_selected_entries_are_exported(dumps: Path, tmp_path: Path, name: str) -> None:
    require_format(name)
    keys = ("observation", "action", "reward", "terminated")
    exported = export_dump(dumps / "cart", tmp_path / "some", to=name, keys=keys)
    assert {each.key for each in exported.entries} == {
        *("observation", "action", "terminated"),
        *("next.observation", "next.reward", "next.terminated"),
    }
    import_dump(exported.path, tmp_path / "again", format=name)
    found, whole = open_dump(tmp_path / "again"), open_dump(dumps / "cart")
    assert_same_bits(found.data, whole.data.select(*found.data.keys(True, True)))
    assert found.manifest.keys == keys
    assert list(found.manifest.episodes) == list(whole.manifest.episodes)
    with pytest.raises(
        UnknownNameError, match=r"unknown entry 'rewrd' \(did you mean reward or next.reward\?\)"
    ):
        export_dump(dumps / "cart", tmp_path / "none", to=name, keys=["rewrd"])


def test_export_is_deterministic(dumps: Path, tmp_path: Path) -> None:
    for name in ("npz", "safetensors", "jsonl"):
        both = [export_dump(dumps / "cart", tmp_path / str(i), to=name).path for i in (1, 2)]
        assert Path(both[0]).read_bytes() == Path(both[1]).read_bytes()
        for path in both:
            Path(path).unlink()


@exhaustive
def test_existing_export_is_unchanged_until_the_new_one_is_complete(
    dumps: Path, tmp_path: Path
) -> None:
    path = tmp_path / "cart.npz"
    export_dump(dumps / "cart", path)
    before = path.read_bytes()
    with pytest.raises(ArgumentError, match="already exists"):
        export_dump(dumps / "cart", path)

    def stop(progress: Any) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        export_dump(dumps / "cart", path, force=True, on_rows=stop)
    with pytest.raises(KeyboardInterrupt):
        import_dump(path, tmp_path / "again", on_rows=stop)
    assert path.read_bytes() == before
    assert [each.name for each in tmp_path.iterdir()] == ["cart.npz"]
    (tmp_path / "notes.zarr").mkdir()
    (tmp_path / "notes.zarr" / "todo").touch()
    require_format("zarr")
    with pytest.raises(ArgumentError, match="exists and is not zarr"):
        export_dump(dumps / "cart", tmp_path / "notes.zarr", force=True)
    for _ in range(2):
        export_dump(dumps / "cart", tmp_path / "cart.zarr", force=True)


@pytest.mark.parametrize("name", [each.name for each in export_formats() if each.extra])
def test_missing_package_is_reported(
    dumps: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    kind = find_format(name)
    monkeypatch.setitem(sys.modules, kind.packages[0], None)
    message = rf"{name} needs {kind.packages[0]}.*install tdx with its extra `{kind.extra}`"
    with pytest.raises(MissingPackageError, match=message):
        export_dump(dumps / "pixels", tmp_path / "x", to=name)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", BACK)
def test_truncated_file_is_refused(dumps: Path, tmp_path: Path, name: str) -> None:
    require_format(name)
    path = Path(export_dump(dumps / "cart", tmp_path / "file", to=name).path)
    inside = [each for each in path.rglob("*") if each.is_file()] if path.is_dir() else [path]
    file = max(
        inside, key=lambda each: (name != "zarr" or "reward" in str(each), each.stat().st_size)
    )
    data = file.read_bytes()
    file.write_bytes(data[: len(data) // 2])
    with pytest.raises(StorageError) as refused:
        import_dump(path, tmp_path / "again", format=name)
    assert refused.value.hint
    assert not (tmp_path / "again").exists()


def test_changed_numbers_are_detected(dumps: Path, tmp_path: Path) -> None:
    path = tmp_path / "cart.jsonl"
    export_dump(dumps / "cart", path)
    lines = path.read_text().splitlines()
    for changed, message in (
        (
            [*lines[:7], lines[7].replace('"reward": [1.0]', '"reward": [2.0]'), *lines[8:]],
            "chunk 0",
        ),
        (lines[:-1], "is truncated"),
        ([*lines, lines[-1]], "more steps"),
    ):
        path.write_text("\n".join(changed) + "\n")
        with pytest.raises(StorageError, match=message):
            import_dump(path, tmp_path / "again")


def test_unfinished_dump_is_exported_with_a_note(dumps: Path, tmp_path: Path) -> None:
    record(tmp_path / "cut")
    manifest = Manifest.load(tmp_path / "cut")
    manifest.complete, manifest.goal = False, Goal(steps=900)
    with Container.open(tmp_path / "cut") as root:
        manifest.save(root)
    exported = export_dump(tmp_path / "cut", to="npz")
    assert any("unfinished" in note for note in exported.notes)
    imported = import_dump(exported.path, tmp_path / "again")
    assert any("unfinished" in note for note in imported.notes)
    assert Manifest.load(tmp_path / "again").goal == Goal(steps=130)
    assert Manifest.load(tmp_path / "again").complete


def test_index_columns_and_entries_have_different_names(dumps: Path, tmp_path: Path) -> None:
    pq = pytest.importorskip("pyarrow.parquet")
    export_dump(dumps / "odd_batch", tmp_path / "o.parquet")
    names = pq.read_schema(tmp_path / "o.parquet").names
    assert names[:3] == ["env_", "episode_", "step_"]
    assert {"env", "episode", "step", "a.b", "a.b_"} < set(names)
    assert all(one != other for one, other in pairwise(sorted(names)))


def test_invalid_pixels_are_refused(dumps: Path, tmp_path: Path) -> None:
    require_format("gif")
    scaled = (
        "ToTensorImage",
        'ObservationNorm(0.0, 0.1, in_keys=["pixels"], standard_normal=True)',
    )
    record(tmp_path / "scaled", "CartPole-v1", *scaled, from_pixels=True, goal=Goal(steps=2))
    with pytest.raises(ArgumentError, match=r"'pixels' is not within 0 … 1 at step 0"):
        export_dump(tmp_path / "scaled", to="gif")
    several = 'ToTensorImage(in_keys=["pixels"], out_keys=["image"])'
    record(tmp_path / "several", "CartPole-v1", several, from_pixels=True, goal=Goal(steps=2))
    with pytest.raises(ArgumentError, match="several entries of pixels: pixels, image") as refused:
        export_dump(tmp_path / "several", to="gif")
    assert "--keys pixels" in str(refused.value.hint)
    export_dump(tmp_path / "several", to="gif", keys=["image"])
    with pytest.raises(ArgumentError, match=r"unknown episode 9 \(the dump has 0 to 2\)"):
        export_dump(dumps / "pixels", tmp_path / "x.gif", episodes=[9])
    assert sorted(each.name for each in tmp_path.iterdir()) == ["scaled", "several", "several.gif"]


@exhaustive
def test_frames_of_several_envs_are_concatenated(tmp_path: Path) -> None:
    av = pytest.importorskip("av")
    asked = {"num_envs": 2, "from_pixels": True, "goal": Goal(steps=5), "chunk_steps": 2}
    record(tmp_path / "dump", "CartPole-v1", "StepCounter(max_steps=4)", **asked)
    exported = export_dump(tmp_path / "dump", to="mp4")
    data = open_dump(tmp_path / "dump").data["pixels"]
    assert exported.episodes == 4
    with av.open(exported.path) as file:
        shown = [frame.to_ndarray(format="rgb24") for frame in file.decode(video=0)]
    assert len(shown) == 2 * (5 + 2)
    for place, (row, step) in {0: (0, 0), 3: (0, 3), 5: (1, 0), 10: (0, 4), 12: (1, 4)}.items():
        np.testing.assert_array_equal(shown[place], data[row, step].numpy())


@pytest.mark.parametrize("name", ["hdf5", "minari", "parquet", "rerun", "lerobot", "mp4"])
@sampled(3)
def test_export_without_its_end_does_not_replace_another_one(
    dumps: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    dump = dumps / ("pixels" if name in ("lerobot", "mp4") else "cart")
    target = tmp_path / "export"
    export_dump(dump, target, to=name)
    before = hash_tree(tmp_path)
    torn = load_exporter(find_format(name))
    write_whole = torn.write

    def write(source: Any, part: Path, options: Any) -> tuple[str, ...]:
        notes = write_whole(source, part, options)
        for file in part.rglob("*") if part.is_dir() else [part]:
            if file.suffix not in (".json", "") or file == part:
                os.truncate(file, file.stat().st_size // 2)
        return notes

    torn.write = write
    monkeypatch.setattr("tdx.rollouts.formats.conversion.load_exporter", lambda kind: torn)
    with pytest.raises(OutputError, match=r"cannot write .*export"):
        export_dump(dump, target, to=name, force=True)
    assert hash_tree(tmp_path) == before


def test_failed_zarr_export_leaves_no_thread_that_writes(
    dumps: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One chunk cannot be written while others are; these must not recreate the folder."""
    require_format("zarr")
    from zarr.storage import LocalStore

    write, running = LocalStore.set, 0
    failed: list[str] = []

    async def fail_once(self: LocalStore, key: str, value: Any) -> None:
        nonlocal running
        if "/c/" not in key:
            await write(self, key, value)
        elif not failed:
            failed.append(key)
            await asyncio.sleep(0)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        else:
            running += 1
            await asyncio.sleep(0.2)
            await write(self, key, value)
            running -= 1

    monkeypatch.setattr(LocalStore, "set", fail_once)
    monkeypatch.setattr("tdx.rollouts.formats.zarr._CHUNK", 64)
    with pytest.raises(OutputError, match="no space left"):
        export_dump(dumps / "cart", tmp_path / "a.zarr", to="zarr")
    assert (len(failed), running) == (1, 0)
    assert list(tmp_path.iterdir()) == []

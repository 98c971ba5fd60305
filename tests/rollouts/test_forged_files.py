"""Imports of untrusted files read no other files, run no code, and validate headers."""

from __future__ import annotations

import json
import os
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tdx import import_dump
from tdx.foundation.errors import StorageError, TdxError
from tests.programs import exhaustive, sampled

STEPS = 20


def assert_refused(source: Path, message: str, kind: str | None = None) -> None:
    """Check that a file is refused with a hint and that the import leaves no files."""
    target = source.parent / "dump"
    with pytest.raises(TdxError, match=message) as error:
        import_dump(source, target, format=kind)
    assert error.value.hint
    assert not target.exists()
    assert not list(source.parent.glob(".dump*"))


# HDF5


def hdf5(path: Path, fill: Callable[[Any, Any], Any]) -> Path:
    h5py = pytest.importorskip("h5py")
    with h5py.File(path, "w") as file:
        file["rewards"] = np.zeros(STEPS)
        fill(h5py, file)
    return path


def external(h5py: Any, file: Any) -> None:
    secret = str(Path(file.filename).with_name("secret"))
    file.create_dataset("leak", (STEPS,), "u1", external=[(secret, 0, STEPS)])


def virtual(h5py: Any, file: Any) -> None:
    other = str(Path(file.filename).with_name("other.h5"))
    layout = h5py.VirtualLayout((STEPS,), "f8")
    layout[:] = h5py.VirtualSource(other, "x", (STEPS,))
    file.create_virtual_dataset("leak", layout)


def declared(shape: tuple[int, ...], **options: Any) -> Callable[[Any, Any], Any]:
    return lambda h5py, file: file.create_dataset("big", shape, "f8", **options)


def bomb(h5py: Any, file: Any) -> None:
    """Write a chunk that declares 8 kB and decompresses to 512 MiB."""
    import zlib

    data = file.create_dataset("big", (1000,), "f8", chunks=(1000,), compression=1)
    data.id.write_direct_chunk((0,), zlib.compress(bytes(2**29), 9))


@pytest.mark.parametrize(
    ("fill", "message"),
    [
        (external, "'leak' .* has external storage"),
        (virtual, "'leak' .* has virtual storage"),
        (lambda h, f: f.__setitem__("leak", h.ExternalLink("other.h5", "/x")), "'leak' .* link"),
        (lambda h, f: f.__setitem__("leak", h.SoftLink("/rewards")), "'leak' .* is a link"),
        (declared((5 * 10**12,)), r"declares 40,000,000,000,000 bytes, but only 0 are stored"),
        (declared((5 * 10**12,), chunks=(1000,), compression=1), "40,000,000,000,000 bytes"),
        (declared((STEPS,), maxshape=(None,), chunks=(2**28,)), "has chunks of"),
        (bomb, "a chunk of 'big' .* is larger than it declares"),
    ],
)
@sampled(3)
def test_forged_hdf5_is_refused(
    tmp_path: Path, fill: Callable[[Any, Any], Any], message: str
) -> None:
    (tmp_path / "secret").write_bytes(b"s" * STEPS)
    assert_refused(hdf5(tmp_path / "x.h5", fill), message)


def test_cyclic_groups_of_hdf5_are_imported_once(tmp_path: Path) -> None:
    def circle(h5py: Any, file: Any) -> None:
        file.create_group("a")["b"] = file["/"]

    source = hdf5(tmp_path / "x.h5", circle)
    assert import_dump(source, tmp_path / "dump").summary["steps"] == STEPS


# Archives and headers


def npy(shape: str, dtype: str = "<f8", data: bytes = b"") -> bytes:
    header = f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + data


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (npy("(5000000000000,)"), "declares 40,000,000,000,000 bytes"),
        (npy("(-1,)"), "invalid size"),
        (npy("(1.5,)"), "is not an array|invalid size"),
        (npy("(2**99,)"), "is not an array"),
        (npy("(99999999999999999999,)"), "impossibly large"),
        (npy("(" + "(" * 9000 + ")" * 9000 + ")"), "is not an array"),
        (npy("(" + "-" * 9000 + "1,)"), "is not an array"),
        (npy("(3,)", "O"), "has no numeric columns"),
        (b"\x93NUMPY\x09\x00", "is not an array"),
    ],
)
def test_forged_npz_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    with zipfile.ZipFile(tmp_path / "x.npz", "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("reward.npy", content)
    assert_refused(tmp_path / "x.npz", message)


def test_npz_with_a_forged_directory_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.npz"
    np.savez(path, reward=np.zeros(3))
    data = path.read_bytes()
    at = data.index(b"PK\x01\x02")
    forged = data[: at + 20] + struct.pack("<II", 100, 2**31) + data[at + 28 :]
    path.write_bytes(forged)
    assert_refused(path, "declares 2,147,483,648 bytes, but only 100 are stored")
    with zipfile.ZipFile(path, "w", zipfile.ZIP_BZIP2) as file:
        file.writestr("reward.npy", npy("(3,)", data=bytes(24)))
    assert_refused(path, "compressed in an unknown way")


def safetensors(path: Path, header: Any, data: bytes = b"", length: int | None = None) -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    size = len(text) if length is None else length
    path.write_bytes(size.to_bytes(8, "little") + text + data)
    return path


def tensor(shape: Any, begin: Any, end: Any) -> dict[str, Any]:
    return {"dtype": "F64", "shape": shape, "data_offsets": [begin, end]}


@pytest.mark.parametrize(
    ("header", "message"),
    [
        ({"reward": tensor([5 * 10**12], 0, 4 * 10**13)}, "impossible offsets"),
        ({"reward": tensor([3], -24, 0)}, "impossible offsets"),
        ({"reward": tensor([3], 0, 8)}, "impossible offsets"),
        ({"reward": tensor([3], "0", 24)}, "impossible offsets"),
        ({"reward": tensor([-3], 0, 24)}, "invalid size"),
        ({"reward": tensor([2**40, 2**40], 0, 24)}, "impossibly large"),
        ({"a": tensor([3], 0, 24), "b": tensor([3], 0, 24)}, "declares 48 bytes"),
        ({"\u202ereward": tensor([3], 0, 24)}, "cannot be a key"),
        ({"a" * 300: tensor([3], 0, 24)}, "cannot be a key"),
        ({"a": tensor([1], 0, 8), "a/b": tensor([1], 8, 16)}, "is both a column and a group"),
        (b"[" * 20_000, "is not a safetensors file"),
        (b"[]", "is not a safetensors file"),
    ],
)
def test_forged_safetensors_is_refused(tmp_path: Path, header: Any, message: str) -> None:
    assert_refused(safetensors(tmp_path / "x.safetensors", header, bytes(24)), message)


def test_safetensors_with_a_huge_header_is_refused(tmp_path: Path) -> None:
    assert_refused(
        safetensors(tmp_path / "x.safetensors", b"{}", length=2**62), "not a safetensors file"
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"reward": ' + "[" * 20_000, "is not a JSON object"),
        ('{"a": ' * 20_000, "is not a JSON object"),
        ('{"reward": [' + "1," * 40 + '"nan:' + "f" * 9000 + '"]}', "no numeric columns"),
        ('{"reward": ' + "9" * 5000 + "}", "is not a JSON object"),
        ('{"a\\u0000b": 1}', "cannot be a key"),
        ('{"\\ud800": 1}', "cannot be a key"),
    ],
)
def test_forged_json_lines_are_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "x.jsonl").write_text(text + "\n")
    assert_refused(tmp_path / "x.jsonl", message)


def test_overlong_line_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tdx.rollouts.formats.jsonl.MAX_NOTE_BYTES", 1000)
    (tmp_path / "x.jsonl").write_text(" " * 2000)
    assert_refused(tmp_path / "x.jsonl", "the line has more than 1,000 bytes")


@pytest.mark.parametrize("kind", ["npz", "jsonl", "safetensors", "hdf5", "parquet"])
def test_pipe_is_refused_without_blocking(tmp_path: Path, kind: str) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert_refused(tmp_path / "pipe", "is not a regular file", kind)


@exhaustive
def test_damaged_parquet_raises_only_errors_with_hints(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    pq = pytest.importorskip("pyarrow.parquet")
    table = pa.table({"reward": np.zeros(2_000_000)})
    pq.write_table(table, tmp_path / "x.parquet", compression="zstd")
    small = tmp_path / "x.parquet"
    assert import_dump(small, tmp_path / "fine").summary["steps"] == 2_000_000
    data = small.read_bytes()
    for at in range(len(data) - 8, len(data) - 400, -17):
        small.write_bytes(data[:at] + bytes([data[at] ^ 0x55]) + data[at + 1 :])
        try:
            import_dump(small, tmp_path / "dump", force=True)
        except TdxError as error:
            assert error.hint  # noqa: PT017


# Folders


def zarr_group(folder: Path, **change: Any) -> Path:
    zarr = pytest.importorskip("zarr")
    group = zarr.open_group(folder, mode="w")
    group["rewards"] = np.arange(STEPS, dtype=np.float64)
    file = folder / "rewards" / "zarr.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | change))
    return folder


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"shape": [5 * 10**12]}, "has .* chunks|declares"),
        ({"shape": [-1]}, "invalid size"),
        ({"shape": [10**9], "chunk_grid": {}}, "metadata .* is damaged"),
        ({"codecs": [{"name": "numcodecs.pickle"}]}, "needs the codec 'numcodecs.pickle'"),
        ({"codecs": [{"name": "sharding_indexed"}]}, "needs the codec 'sharding_indexed'"),
        ({"codecs": 3}, "metadata .* is damaged"),
        ({"storage_transformers": [{"name": "x"}]}, "stored in an unknown way"),
        ({"data_type": "string"}, "has no numeric columns"),
    ],
)
def test_forged_zarr_is_refused(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    assert_refused(zarr_group(tmp_path / "x.zarr", **change), message)


def test_zarr_of_only_fill_values_is_refused(tmp_path: Path) -> None:
    grid = {"name": "regular", "configuration": {"chunk_shape": [2**24]}}
    folder = zarr_group(tmp_path / "x.zarr", shape=[5 * 10**12], chunk_grid=grid)
    assert_refused(folder, "declares 40,000,0.* bytes, but only")


def test_zarr_chunk_that_expands_is_refused(tmp_path: Path) -> None:
    folder = zarr_group(tmp_path / "x.zarr")
    (chunk,) = (folder / "rewards" / "c").iterdir()
    numcodecs = pytest.importorskip("numcodecs")
    chunk.write_bytes(numcodecs.Zstd().encode(bytes(2**27)))
    assert_refused(folder, "is larger than it declares")


def test_zarr_array_of_objects_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "x.zarr"
    (folder / "a").mkdir(parents=True)
    (folder / ".zgroup").write_text('{"zarr_format": 2}')
    array = {"zarr_format": 2, "shape": [3], "chunks": [3], "dtype": "|O", "compressor": None}
    array |= {"fill_value": None, "order": "C", "filters": [{"id": "pickle"}]}
    (folder / "a" / ".zarray").write_text(json.dumps(array))
    assert_refused(folder, "array of objects", "zarr")


@pytest.mark.parametrize("name", ["rewards/c/0", "rewards/zarr.json", "rewards"])
def test_links_in_a_zarr_group_are_refused(tmp_path: Path, name: str) -> None:
    folder = zarr_group(tmp_path / "x.zarr")
    (folder / name).rename(tmp_path / "elsewhere")
    (folder / name).symlink_to(tmp_path / "elsewhere")
    assert_refused(folder, "is a symbolic link")


def minari_dataset(folder: Path, change: Callable[[dict[str, Any]], Any]) -> Path:
    h5py = pytest.importorskip("h5py")
    pytest.importorskip("minari")
    (folder / "data").mkdir(parents=True)
    box = {"type": "Box", "dtype": "float32", "shape": [1], "low": [0.0], "high": [1.0]}
    metadata = {
        "total_episodes": 1,
        "total_steps": 2,
        "data_format": "hdf5",
        "observation_space": json.dumps(box),
        "action_space": json.dumps({"type": "Discrete", "dtype": "int64", "start": 0, "n": 2}),
    }
    change(metadata)
    (folder / "data" / "metadata.json").write_text(json.dumps(metadata))
    with h5py.File(folder / "data" / "main_data.hdf5", "w") as file:
        episode = file.create_group("episode_0")
        episode.attrs["total_steps"] = 2
        episode["observations"] = np.zeros((3, 1), np.float32)
        for name in ("actions", "rewards", "terminations", "truncations"):
            episode[name] = np.zeros(2, np.int64)
    return folder


def test_minari_env_spec_is_not_built(tmp_path: Path) -> None:
    """Refuse a missing space: Minari would build ``env_spec``, which can run any code."""
    spec: dict[str, Any] = {
        "id": "x-v0",
        "entry_point": "os:mkdir",
        "kwargs": {"path": str(tmp_path / "executed")},
        "reward_threshold": None,
        "nondeterministic": False,
        "max_episode_steps": None,
        "disable_env_checker": True,
        "additional_wrappers": [],
        "vector_entry_point": None,
    }

    def change(metadata: dict[str, Any]) -> None:
        del metadata["observation_space"]
        metadata["env_spec"] = json.dumps(spec)

    assert_refused(minari_dataset(tmp_path / "x-v0", change), "has no observation_space")
    assert not (tmp_path / "executed").exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m: m.update(data_format="arrow"), "data format 'arrow'"),
        (lambda m: m.update(data_format="os.path"), "data format"),
        (lambda m: m.update(action_space=3), "has no action_space"),
        (lambda m: m.update(action_space="[" * 20_000), "nested more than"),
        (
            lambda m: m.update(
                action_space='{"type": "Box", "dtype": "S999999999", "shape": [1], '
                '"low": [0], "high": [1]}'
            ),
            "has the dtype",
        ),
        (lambda m: m.update(action_space='{"type": "Nothing"}'), "cannot be read as a Minari"),
        (lambda m: m.update(total_episodes=10**12), "cannot be read"),
        (lambda m: m.update(tdx={}), "is invalid"),
    ],
)
def test_forged_minari_metadata_is_refused(
    tmp_path: Path, change: Callable[..., Any], message: str
) -> None:
    assert_refused(minari_dataset(tmp_path / "x-v0", change), message)


def test_links_in_a_minari_data_set_are_refused(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    folder = minari_dataset(tmp_path / "x-v0", lambda m: None)
    import_dump(folder, tmp_path / "fine")
    file = folder / "data" / "main_data.hdf5"
    with h5py.File(file, "a") as opened:
        del opened["episode_0"]["rewards"]
        opened["episode_0"]["rewards"] = h5py.ExternalLink("/etc/other.h5", "/x")
    assert_refused(folder, "is a link")
    file.rename(tmp_path / "elsewhere.hdf5")
    file.symlink_to(tmp_path / "elsewhere.hdf5")
    assert_refused(folder, "is a symbolic link")


# Metadata of tdx


@pytest.mark.parametrize(
    "change",
    [
        lambda m: m.update(batch_size=[10**10]),
        lambda m: m.update(batch_size=[-1]),
        lambda m: m.update(batch_size=[0]),
        lambda m: m.update(batch_size="many"),
        lambda m: m.update(tracks={}),
    ],
)
def test_forged_metadata_is_refused(
    tmp_path: Path, change: Callable[[dict[str, Any]], Any]
) -> None:
    from tdx import export_dump
    from tests.rollouts.recordings import record

    record(tmp_path / "made")
    export_dump(tmp_path / "made", tmp_path / "x.npz")
    with np.load(tmp_path / "x.npz") as file:
        arrays = dict(file)
    note = json.loads(bytes(arrays["tdx"]))
    change(note["manifest"])
    arrays["tdx"] = np.array(json.dumps(note).encode())
    np.savez(tmp_path / "x.npz", **arrays)
    with pytest.raises(StorageError, match="is invalid") as error:
        import_dump(tmp_path / "x.npz", tmp_path / "dump")
    assert error.value.hint

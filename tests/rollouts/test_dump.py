"""Contents of a dump, its overview and its verification."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tensordict import TensorDict

from tdx import EnvConfig, Pipeline, TdxError, build_env, open_dump, record_dump
from tdx.foundation.container import Container
from tdx.rollouts import Goal, Manifest, list_dumps, look_at, verify
from tdx.rollouts.dump.encoding import pack, unpack
from tests.rollouts.recordings import CHAIN, CHUNK, SEED, STEPS, record, same


def run_rollout(env: str, **options: Any) -> Any:
    """Return the same rollout without a dump."""
    environment = build_env(Pipeline.of(EnvConfig(env, **options), *CHAIN))
    environment.set_seed(SEED)
    torch.manual_seed(SEED)
    return torch.cat(list(environment.iter_rollout(STEPS, chunk_steps=CHUNK)), -1)


@pytest.mark.parametrize(
    ("env", "options"),
    [("CartPole-v1", {}), ("CartPole-v1", {"num_envs": 3}), ("tdx/Pendulum", {"num_envs": 2})],
)
def test_dump_equals_the_rollout(tmp_path: Path, env: str, options: dict[str, Any]) -> None:
    before = torch.get_rng_state()
    manifest = record(tmp_path / "dump", env, **options)
    assert torch.equal(torch.get_rng_state(), before)
    dump, wanted = open_dump(tmp_path / "dump"), run_rollout(env, **options)
    assert dump.data.batch_size == wanted.batch_size
    assert same(dump.data, wanted)
    assert manifest.to_dict() == dump.manifest.to_dict()
    assert manifest.complete
    assert [chunk.steps for chunk in manifest.chunks] == [25, 25, 25, 25, 25, 5]
    assert not (tmp_path / "dump" / "state").exists()
    assert verify(tmp_path / "dump").is_fine
    assert manifest.size == sum(leaf.numel() * leaf.itemsize for leaf in wanted.values(True, True))


def test_columns_are_written_in_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tdx.rollouts.dump.track._BLOCK", 100)
    record(tmp_path / "dump", num_envs=3)
    assert same(open_dump(tmp_path / "dump").data, run_rollout("CartPole-v1", num_envs=3))
    assert verify(tmp_path / "dump").is_fine


def test_tensordict_loads_the_data(tmp_path: Path) -> None:
    record(tmp_path / "dump", num_envs=3)
    loaded = TensorDict.load_memmap(tmp_path / "dump" / "data")
    assert loaded.shape == (STEPS, 3)
    assert same(loaded.permute(1, 0), open_dump(tmp_path / "dump").data)


def test_data_is_memory_mapped(tmp_path: Path) -> None:
    record(tmp_path / "dump")
    data = open_dump(tmp_path / "dump").data
    with (tmp_path / "dump" / "data" / "next" / "reward.memmap").open("r+b") as file:
        file.write(np.float32(7).tobytes())
    assert data["next", "reward"][0] == 7


def test_episodes_follow_the_done_flags(tmp_path: Path) -> None:
    record(tmp_path / "dump", num_envs=3)
    dump = open_dump(tmp_path / "dump")
    done, reward = dump.data["next", "done"][..., 0], dump.data["next", "reward"][..., 0]
    episodes = list(dump.manifest.episodes)
    assert sum(each.length for each in episodes) == done.numel()
    assert sum(each.finished for each in episodes) == int(done.sum())
    for each in episodes:
        steps = slice(each.start, each.start + each.length)
        assert bool(done[each.row, each.start + each.length - 1]) == each.finished
        assert int(done[each.row, steps].sum()) == each.finished
        assert each.total_reward == float(reward[each.row, steps].sum())
        ended = dump.data["next", "terminated"][each.row, each.start + each.length - 1]
        assert each.terminated == bool(ended)


def test_rollout_ends_after_the_requested_episodes(tmp_path: Path) -> None:
    manifest = record(tmp_path / "dump", num_envs=2, goal=Goal(episodes=5))
    assert len(manifest.episodes) == 5
    assert open_dump(tmp_path / "dump").data["next", "done"][:, -1].any()


def test_only_selected_keys_are_stored(tmp_path: Path) -> None:
    record(tmp_path / "dump", keys=("next.reward", "observation"))
    dump = open_dump(tmp_path / "dump")
    wanted = {"observation", ("next", "observation"), ("next", "reward")}
    assert set(dump.data.keys(True, True)) == wanted
    assert len(dump.manifest.episodes) > 0
    assert verify(tmp_path / "dump").is_fine


def test_state_of_stages_is_in_the_manifest(tmp_path: Path) -> None:
    record(tmp_path / "dump", "Pendulum-v1", "VecNorm(in_keys=['observation'])", "RewardSum")
    found = open_dump(tmp_path / "dump").manifest.transforms
    env = build_env(open_dump(tmp_path / "dump").pipeline)
    env.set_seed(SEED)
    torch.manual_seed(SEED)
    for _ in env.iter_rollout(STEPS, chunk_steps=CHUNK):
        pass
    for name, value in env.transform.state_dict().items():
        assert found[name]["values"] == value.flatten().tolist()


def test_selecting_an_entry_that_is_not_a_tensor_is_refused(tmp_path: Path) -> None:
    options: dict[str, Any] = {"allow_code": True, "keys": ("observation",)}
    with pytest.raises(TdxError, match="key 'observation': it cannot be stored") as raised:
        record(tmp_path / "dump", "tests.rollouts.recordings:Talking", "RewardSum", **options)
    assert "--keys" in (raised.value.hint or "")
    options["keys"] = ("reward",)
    record(tmp_path / "other", "tests.rollouts.recordings:Talking", "RewardSum", **options)
    assert set(open_dump(tmp_path / "other").data.keys(True, True)) == {("next", "reward")}


def test_verify_finds_each_kind_of_damage(tmp_path: Path) -> None:
    record(tmp_path / "dump")
    data = tmp_path / "dump" / "data"
    (data / "done.memmap").unlink()
    (data / "action.memmap").write_bytes(b"")
    file = data / "next" / "step_count.memmap"
    changed = bytearray(file.read_bytes())
    changed[8 * 30] ^= 1
    file.write_bytes(changed)
    found = {(each.kind, each.file, each.chunk) for each in verify(tmp_path / "dump").problems}
    assert found == {
        ("missing", "data/done.memmap", None),
        ("short", "data/action.memmap", None),
        ("checksum", "data/next/step_count.memmap", 1),
    }


def test_verify_finds_spec_violations(tmp_path: Path) -> None:
    record(tmp_path / "dump")
    manifest = Manifest.load(tmp_path / "dump")
    for spec in manifest.specs:
        if spec["key"] == ["step_count"]:
            spec["high"] = 12
        if spec["key"] == ["reward"]:
            spec["dtype"] = "float64"
    with Container.open(tmp_path / "dump") as root:
        manifest.save(root)
    found = {each.file: each.message for each in verify(tmp_path / "dump").problems}
    wrong = "'next.reward': its dtype is torch.float32, its spec says torch.float64, in chunk 0"
    assert found.pop("data/next/reward.memmap") == wrong
    assert "it holds 13, outside [0, 12], first at step 13" in found.pop("data/step_count.memmap")
    assert "it holds 13, outside [0, 12], first at step 12" in found.pop(
        "data/next/step_count.memmap"
    )
    assert not found


def test_overview_and_list_of_dumps(tmp_path: Path) -> None:
    record(tmp_path / "b" / "dump", num_envs=2)
    record_dump(Pipeline.of("Pendulum-v1"), tmp_path / "a", steps=10, seed=1)
    found = look_at(open_dump(tmp_path / "b" / "dump"))
    reward = next(each for each in found.entries if each.key == ("next", "reward"))
    assert (reward.mean, reward.shape) == (1.0, (2, 1))
    assert found.returns is not None
    assert sum(found.returns.counts) == len(found.ended)
    listed = list_dumps(tmp_path)
    assert [each.path for each in listed] == [str(tmp_path / "a"), str(tmp_path / "b" / "dump")]
    envs = [each.summary["env"] for each in listed if each.summary]
    assert envs == ["Pendulum-v1", "CartPole-v1"]


def test_unpacked_values_equal_the_packed_ones() -> None:
    value: dict[Any, Any] = {
        "a": [1, 2.5, None, True, "x", (1, ("y",))],
        ("next", "key"): torch.arange(6, dtype=torch.int16).reshape(2, 3),
        "empty": torch.empty(0, 3),
        "array": np.array([[1.5, np.inf]]),
        "number": np.int64(2**62),
        "large": 2**100,
        3: {"nan": np.float32("nan")},
    }
    back = unpack(pack(value))
    assert back["a"] == value["a"]
    assert list(map(repr, back)) == list(map(repr, value))
    assert torch.equal(back["next", "key"], value["next", "key"])
    assert back["empty"].shape == (0, 3)
    assert np.array_equal(back["array"], value["array"])
    assert type(back["number"]) is np.int64
    assert back["number"] == 2**62
    assert back["large"] == 2**100
    assert np.isnan(back[3]["nan"])
    with pytest.raises(ValueError, match="truncated"):
        unpack(pack(value)[:-4])
    with pytest.raises(TypeError, match="cannot be packed"):
        pack({"a": object()})


@pytest.mark.gpu
@pytest.mark.parametrize("raw", [False, True])
def test_dump_of_an_env_on_an_accelerator(tmp_path: Path, raw: bool) -> None:
    options: dict[str, Any] = {"num_envs": 4, "device": "cuda:0", "raw": raw}
    record(tmp_path / "dump", "tdx/Pendulum", *CHAIN, "VecNorm", **options)
    assert verify(tmp_path / "dump").is_fine
    assert open_dump(tmp_path / "dump").data.shape == (4, STEPS)

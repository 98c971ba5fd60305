"""``tdx.watch``: records of training, without an effect on it."""

from __future__ import annotations

import json
import re
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize
from tensordict import TensorDictBase
from torch.utils.tensorboard import SummaryWriter

import tdx
from tdx.cli.process import run
from tdx.foundation.errors import ArgumentError, StorageError
from tdx.inspection.watch import WatchWarning, watch
from tdx.inspection.watch_records import WatchReport, read_watch
from tests.programs import exhaustive


def native() -> tdx.TransformedEnv:
    chain = tdx.Compose(tdx.VecNorm(in_keys=["observation"]), tdx.RewardSum())
    return tdx.TransformedEnv(tdx.GymEnv("Pendulum-v1"), chain)


def wrapped() -> Any:
    return gymnasium.wrappers.NormalizeObservation(gymnasium.make("Pendulum-v1"))


def vectorized() -> Any:
    return VecNormalize(DummyVecEnv([lambda: gymnasium.make("Pendulum-v1")] * 2))


def roll_out(env: tdx.TransformedEnv) -> TensorDictBase:
    env.set_seed(0)
    torch.manual_seed(0)
    return torch.cat([env.rollout(30, break_when_any_done=False) for _ in range(4)], -1)


def iterate(env: tdx.TransformedEnv) -> TensorDictBase:
    env.set_seed(0)
    torch.manual_seed(0)
    return torch.cat(list(env.iter_rollout(120, chunk_steps=30)), -1)


def step_native(env: tdx.TransformedEnv) -> TensorDictBase:
    env.set_seed(0)
    torch.manual_seed(0)
    tensordict, results = env.reset(), []
    for _ in range(120):
        results.append(env.step(env.rand_action(tensordict)))
        tensordict = tdx.step_mdp(results[-1])
    return torch.stack(results)


def step_wrapped(env: Any) -> list[Any]:
    env.reset(seed=0)
    actions = np.linspace(-2, 2, 120, dtype=np.float32)
    return [env.step(np.array([each]))[0].copy() for each in actions]


def step_vectorized(env: Any) -> list[Any]:
    env.seed(0)
    env.reset()
    actions = np.linspace(-2, 2, 120, dtype=np.float32)
    return [env.step(np.full((2, 1), each))[0].copy() for each in actions]


def torchrl() -> Any:
    from torchrl.envs import Compose, GymEnv, ObservationNorm, RewardSum, TransformedEnv

    norm = ObservationNorm(0.0, 0.5, in_keys=["observation"])
    return TransformedEnv(GymEnv("Pendulum-v1"), Compose(norm, RewardSum()))


def roll_out_torchrl(env: Any) -> TensorDictBase:
    env.set_seed(0)
    torch.manual_seed(0)
    return env.rollout(120, break_when_any_done=False)


WAYS: dict[str, tuple[Callable[[], Any], Callable[[Any], Any], str]] = {
    "rollout": (native, roll_out, "0 VecNorm"),
    "iter_rollout": (native, iterate, "0 VecNorm"),
    "step": (native, step_native, "0 VecNorm"),
    "Gymnasium": (wrapped, step_wrapped, "3 NormalizeObservation"),
    "SB3": (vectorized, step_vectorized, "VecNormalize"),
    "TorchRL": (torchrl, roll_out_torchrl, "0 ObservationNorm"),
}


def same(one: Any, other: Any) -> bool:
    if isinstance(one, TensorDictBase):
        return bool((one == other).all())
    return all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("way", WAYS)
def test_values_are_those_without_it(way: str, tmp_path: Path) -> None:
    make, act, normalizer = WAYS[way]
    expected, env = act(make()), make()
    before = dict(env.__dict__)
    with watch(env, every=30, to=tmp_path / "watch.jsonl", max_share=1) as watched:
        found = act(env)
    assert same(found, expected)
    assert (watched.steps, watched.samples) == (120, 4)
    assert {name for name in env.__dict__ if name in ("step", "rollout", "iter_rollout")} == {
        name for name in before if name in ("step", "rollout", "iter_rollout")
    }
    report = read_watch(tmp_path / "watch.jsonl")
    assert report.steps == (30, 60, 90, 120)
    stages = {each.stage for each in report.drifts}
    assert any(normalizer in each for each in stages), stages
    assert any(each.name.endswith("/mean") for each in report.drifts)


def drift(report: WatchReport, stage: str, name: str) -> Any:
    (found,) = [each for each in report.drifts if (each.stage, each.name) == (stage, name)]
    return found


def test_statistics_are_those_of_the_step(tmp_path: Path) -> None:
    env = native()
    with watch(env, every=120, to=tmp_path / "watch.jsonl", max_share=1):
        results = step_native(env)
    report = read_watch(tmp_path / "watch.jsonl")
    last = results[-1]["next"]
    observation = last["observation"].double()
    assert drift(report, "0 VecNorm", "observation/mean").last == pytest.approx(observation.mean())
    assert drift(report, "0 VecNorm", "observation/maximum").last == pytest.approx(
        observation.max()
    )
    assert drift(report, "1 RewardSum", "episode_reward/mean").last == last["episode_reward"].item()
    assert drift(report, "1 RewardSum", "microseconds").last > 0
    norm = env.transform[0]
    loc = drift(report, "0 VecNorm", "loc of observation[2]").last
    assert loc == pytest.approx(norm.loc["observation"][2].item(), rel=1e-4)


def test_expensive_samples_are_left_out(tmp_path: Path) -> None:
    env = native()
    with watch(env, every=1, to=tmp_path / "watch.jsonl", max_share=0) as watched:
        step_native(env)
    assert (watched.samples, watched.skipped) == (1, 119)


def test_env_that_raises_is_left_as_it_was(tmp_path: Path) -> None:
    class Failing(gymnasium.Wrapper[Any, Any, Any, Any]):
        def step(self, action: Any) -> Any:
            raise RuntimeError("broken")

    env = Failing(gymnasium.make("Pendulum-v1"))
    env.reset()
    with (
        pytest.raises(Exception, match="broken"),
        watch(env, every=1, to=tmp_path / "watch.jsonl"),
    ):
        env.step(np.zeros(1, np.float32))
    assert "step" not in env.__dict__
    assert read_watch(tmp_path / "watch.jsonl").steps == ()


def test_tensorboard(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    env = native()
    with SummaryWriter(str(tmp_path)) as writer, watch(env, every=30, to=writer, max_share=1):
        roll_out(env)
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    assert [each.step for each in events.Scalars("tdx/output/observation/mean")] == [
        30,
        60,
        90,
        120,
    ]
    assert "tdx/0_VecNorm/loc_of_observation[0]" in events.Tags()["scalars"]


class Run:
    """Has the interface of a run of W&B."""

    def __init__(self) -> None:
        self.rows: list[tuple[int, dict[str, float]]] = []

    def log(self, values: dict[str, float], step: int) -> None:
        self.rows.append((step, values))


def test_any_object_with_log() -> None:
    env, target = wrapped(), Run()
    with watch(env, every=60, to=target, max_share=1):
        step_wrapped(env)
    assert [step for step, _ in target.rows] == [60, 120]
    assert "tdx/3 NormalizeObservation/obs_rms.mean[0]" in target.rows[0][1]


@exhaustive
def test_rerun_gets_the_values_of_each_stage(tmp_path: Path) -> None:
    import rerun
    from rerun.chunk import RrdReader

    env = native()
    recording = rerun.RecordingStream("tdx")
    recording.save(tmp_path / "watch.rrd")
    with watch(env, every=30, to=recording, max_share=1):
        results = step_native(env)
    recording.disconnect()
    found: dict[str, list[Any]] = {}
    for chunk in RrdReader(tmp_path / "watch.rrd").stream().to_chunks():
        columns = chunk.to_record_batch().to_pydict()
        if "Scalars:scalars" in columns:
            rows = zip(columns["step"], columns["Scalars:scalars"], strict=True)
            found.setdefault(chunk.entity_path.replace("\\", ""), []).extend(rows)
    for entity, key in (
        ("/0 VecNorm/observation", "observation"),
        ("/1 RewardSum/episode_reward", "episode_reward"),
    ):
        expected = [(n, results[n - 1]["next", key].tolist()) for n in (30, 60, 90, 120)]
        assert sorted(found[entity]) == expected
    assert "/statistics/0 VecNorm/observation/mean" in found


def write(path: Path, *lines: Any) -> Path:
    path.write_text("".join(json.dumps(each) + "\n" for each in lines))
    return path


HEAD = {"format": "tdx.watch", "version": 1, "env": "Pendulum-v1", "stages": ["VecNorm()"]}


def record(step: int, mean: float, outside: float, loc: float) -> dict[str, Any]:
    key = {"stage": "env", "key": "observation", "mean": mean, "std": 1.0, "minimum": -1.0}
    key |= {"maximum": 1.0, "nan": 0.0, "outside": outside, "microseconds": 5.0}
    states = [
        {"stage": "0 VecNorm", "name": "loc of observation", "values": [loc]},
        {"stage": "0 VecNorm", "name": "scale of observation", "values": [2.0]},
    ]
    return {"step": step, "seconds": 1.0, "keys": [key], "states": states}


def test_drift_is_described(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    jitter = (0.0, 0.1, -0.1, 0.05, 5.0, 5.1, 4.9, 5.0)
    records = [record(1000 * n, jitter[n], n / 100, n / 2) for n in range(8)]
    file = write(tmp_path / "watch.jsonl", HEAD, *records)
    assert run(["show", str(file)]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "observation/mean moved from 0.05 to 4.95 on average since step 0" in out
    assert "observation/outside rose from 0.0% to 7.0% since step 0" in out
    assert "loc of observation moved by 1.8 scales since step 0" in out
    assert "scale of observation 2 2" in out


def test_noise_is_not_drift(tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(400, generator=generator).tolist()
    records = [record(n, value, 0.0, 0.0) for n, value in enumerate(noise)]
    report = read_watch(write(tmp_path / "watch.jsonl", HEAD, *records))
    assert [each.name for each in report.drifts if each.moved] == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "was not written by tdx.watch"),
        ("[1]\n", "was not written by tdx.watch"),
        ("{\n", "was not written by tdx.watch"),
        (json.dumps({**HEAD, "version": 9}) + "\n", "version 9, this tdx reads 1"),
        (json.dumps(HEAD) + '\n{"step": "x"}\n', "was not written by tdx.watch"),
        (json.dumps(HEAD) + "\n" + "[" * 5000 + "\n", "was not written by tdx.watch"),
    ],
)
def test_other_files_are_refused(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "watch.jsonl"
    file.write_text(text)
    with pytest.raises(StorageError, match=message):
        read_watch(file)


def test_last_line_may_be_incomplete(tmp_path: Path) -> None:
    file = write(tmp_path / "watch.jsonl", HEAD, record(1, 0, 0, 0))
    file.write_text(file.read_text() + '{"step": 2, "sec')
    assert read_watch(file).steps == (1,)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"every": 0}, "less than 1"),
        ({"max_share": 2}, "not within 0 to 1"),
        ({"to": 3}, "is not supported"),
    ],
)
def test_bad_arguments(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        watch(wrapped(), **options)


def test_file_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    env = wrapped()
    with (
        pytest.raises(StorageError, match="cannot write"),
        watch(env, to=tmp_path / "file/x.jsonl"),
    ):
        pass
    assert "step" not in env.__dict__


def test_samples_cover_the_steps_in_which_a_wrapper_changes_nothing(tmp_path: Path) -> None:
    class ClipsSome(gymnasium.RewardWrapper[Any, Any]):
        def reward(self, reward: Any) -> float:
            return max(float(reward), -8.0)

    env = ClipsSome(gymnasium.make("Pendulum-v1"))
    env.reset(seed=0)
    env.action_space.seed(0)
    file = tmp_path / "watch.jsonl"
    with watch(env, every=1, to=file, max_share=1):
        rewards = [float(env.step(env.action_space.sample())[1]) for _ in range(30)]
    assert rewards[0] > -8.0
    assert min(rewards) == -8.0
    drifts = {(drift.stage, drift.name): drift.values for drift in read_watch(file).drifts}
    assert drifts["3 ClipsSome", "reward/mean"] == pytest.approx(rewards)
    inner = drifts["Pendulum-v1", "reward/mean"]
    changed = [float(one != other) for one, other in zip(inner, rewards, strict=True)]
    assert drifts["3 ClipsSome", "reward/changed"] == tuple(changed)


@pytest.mark.parametrize("norm", [tdx.ObservationNorm(0.5, 2.0), tdx.VecNormV2(["observation"])])
def test_every_kind_of_normalizer_has_its_state_recorded(
    norm: tdx.Transform, tmp_path: Path
) -> None:
    env = tdx.TransformedEnv(tdx.GymEnv("Pendulum-v1"), tdx.Compose(norm))
    env.set_seed(0)
    file = tmp_path / "watch.jsonl"
    with watch(env, every=10, to=file, max_share=1) as watched:
        env.rollout(20)
    assert watched.samples == 1
    names = {each.name for each in read_watch(file).drifts if each.stage.startswith("0 ")}
    assert any("loc" in name for name in names), names
    assert any("scale" in name for name in names), names


@contextmanager
def small_files(size: int) -> Iterator[None]:
    """Let writing behind a size fail, as on a full disk."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_training_goes_on_if_samples_cannot_be_written(tmp_path: Path) -> None:
    file, env = tmp_path / "watch.jsonl", native()
    with watch(env, every=10, to=file, max_share=1) as watched:
        env.rollout(20)
        with small_files(file.stat().st_size + 20), pytest.warns(WatchWarning) as warned:
            [env.rollout(20) for _ in range(3)]
        env.rollout(20)
    (warning,) = warned
    assert re.fullmatch(
        r"the sample at step 40 is not recorded: cannot write .*: file too large.*; "
        "the training goes on",
        str(warning.message),
    )
    assert (watched.steps, watched.samples, watched.skipped) == (100, 2, 3)
    assert read_watch(file).steps == (20, 100)


def test_full_disk_leaves_the_old_record(tmp_path: Path) -> None:
    file = write(tmp_path / "watch.jsonl", HEAD, record(1, 0, 0, 0))
    with (
        small_files(20),
        pytest.raises(StorageError, match="file too large"),
        watch(native(), to=file),
    ):
        pass
    assert read_watch(file).steps == (1,)
    assert list(tmp_path.iterdir()) == [file]


def test_samples_before_a_power_failure_are_shown(tmp_path: Path) -> None:
    file = write(tmp_path / "watch.jsonl", HEAD, record(1, 0, 0, 0))
    file.write_bytes(file.read_bytes() + bytes(4096) + b'0}\n{"step": 3}\n')
    with pytest.warns(UserWarning, match="damaged from line 3 on"):
        assert read_watch(file).steps == (1,)

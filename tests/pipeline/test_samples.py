"""Every sample pipeline is valid and rolls out."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import gymnasium
import pytest
import torch
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModule, TensorDictSequential
from torch import nn

from tdx import GRUModule, MultiCategorical, TensorDictPrimer, get_primers_from_module
from tdx.envs.batched.chunk_pool import ChunkPool
from tdx.inspection.check_report import check_pipeline
from tdx.pipeline import Pipeline, build_checked_env, load_catalog, read_pipeline
from tests.programs import exhaustive, sampled

FOLDER = Path(__file__).parents[2] / "sample_pipelines"
SAMPLES = sorted(FOLDER.glob("*.yaml"))
NEEDS = {"atari_lives": "ale_py", "atari_pixels": "ale_py", "mujoco": "mujoco"}


def sample(name: str) -> Pipeline:
    package = NEEDS.get(name)
    if package is not None and find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    if name == "masked_actions" and "Taxi-v4" not in gymnasium.registry:
        pytest.skip("this Gymnasium has no Taxi-v4")
    return sample_file(FOLDER / f"{name}.yaml")


def sample_file(path: Path) -> Pipeline:
    return read_pipeline(path.read_text(encoding="utf-8"), path.name)


@pytest.mark.parametrize("name", [path.stem for path in SAMPLES])
@sampled(5)
def test_samples_are_valid_and_roll_out(name: str) -> None:
    pipeline = sample(name)
    report = check_pipeline(pipeline, allow_code=True)
    assert [each for each in report.findings if each.severity != "suggestion"] == []
    assert "steps" in report.checks
    env = build_checked_env(pipeline, allow_code=True)
    try:
        env.set_seed(0)
        rollout = env.rollout(3)
        assert rollout.shape[-1] == 3
        for key, spec in env.observation_spec.items(True, True):
            value = rollout["next", key].movedim(env.ndim, 0)
            assert spec.why_not_in(value) is None, key
    finally:
        env.close()


def test_every_category_of_transforms_is_in_a_sample() -> None:
    stages = {stage.name for path in SAMPLES for stage in sample_file(path).transforms}
    shown = {info.category for info in load_catalog().transforms if info.name in stages}
    assert sorted(set(load_catalog().categories) - shown) == []


def test_each_sample_starts_with_a_description() -> None:
    for path in SAMPLES:
        assert path.read_text(encoding="utf-8").startswith("# "), path.name


def test_reaching_the_goal_ends_the_episode_with_a_reward() -> None:
    env = build_checked_env(sample("goal_observation"), allow_code=True)

    def towards_the_goal(tensordict: TensorDictBase) -> TensorDictBase:
        way = tensordict["goal", "wanted"] - tensordict["goal", "reached"]
        return tensordict.set("action", way / way.abs().max())

    env.set_seed(0)
    following = env.rollout(50, towards_the_goal)["next"]
    assert 1 < len(following) < 50
    assert following["reward"].flatten().tolist() == [0] * (len(following) - 1) + [1]
    assert following["terminated"].flatten().tolist() == [False] * (len(following) - 1) + [True]
    assert torch.equal(following["goal", "reward"], following["reward"].expand(-1, 2))


def test_discretized_actions_have_six_dimensions_of_five_bins() -> None:
    env = build_checked_env(sample("discretized_actions"), allow_code=True)
    assert env.action_spec == MultiCategorical([5] * 6)
    still = env.step(env.reset().set("action", torch.full((6,), 2)))
    assert torch.allclose(still["next", "observation"], still["observation"], atol=1e-6)


def test_masked_actions_are_always_valid() -> None:
    env = build_checked_env(sample("masked_actions"), allow_code=True)
    rollout = env.rollout(50)
    assert not rollout["action_mask"].all()
    chosen = rollout["action_mask"].gather(-1, rollout["action"].unsqueeze(-1))
    assert chosen.all()


def test_offline_returns_cover_whole_episodes() -> None:
    module = import_module("sample_pipelines.offline_returns")
    batch = module.filled_buffer().sample()
    assert batch.shape == (4, 6)
    returns, done = batch["return"], batch["next", "done"]
    # The sampler marks the last step of a sequence as truncated.
    assert (returns[batch["next", "terminated"]] == 1).all()
    going_on = ~done[:, :-1]
    assert torch.allclose(returns[:, :-1][going_on], 1 + 0.99 * returns[:, 1:][going_on])
    assert (batch["hidden"][:, 0] != 0).any()


def test_offline_chunks_are_of_the_actions_that_follow() -> None:
    module = import_module("sample_pipelines.offline_returns")
    batch = module.chunk_buffer().sample()
    assert batch.shape == (4, 4)
    chunks, padded = batch["vla_action", "chunk"], batch["action_is_pad"]
    assert torch.equal(chunks[..., 0, :], batch["action"])
    following = ~padded[:, :-1, 1]
    assert torch.equal(chunks[:, :-1, 1][following], batch["action"][:, 1:][following])


def test_offline_transitions_are_of_three_steps() -> None:
    module = import_module("sample_pipelines.offline_returns")
    batch = module.transition_buffer().sample()
    steps = batch["steps_to_next_obs"]
    assert set(steps.tolist()) <= {1, 2, 3}
    rewards = torch.tensor([1.0, 1.99, 2.9701])[steps - 1]
    torch.testing.assert_close(batch["next", "reward"].flatten(), rewards)


def test_r3m_encoder_replaces_images_by_vectors() -> None:
    env = build_checked_env(sample("r3m_encoder"))
    assert env.observation_spec["r3m_vec"].shape == (512,)
    assert "pixels" not in env.observation_spec.keys()


def test_recurrent_policy_runs_with_the_primer_of_its_module() -> None:
    env = build_checked_env(sample("recurrent_policy"))
    gru = GRUModule(3, 64, in_key="observation", out_key="features")
    head = TensorDictModule(nn.Linear(64, 1), in_keys=["features"], out_keys=["action"])
    rollout = env.rollout(4, TensorDictSequential(gru, head))
    states = rollout["recurrent_state"]
    assert states.shape == (2, 4, 1, 64)
    assert torch.equal(states[:, 1:], rollout["next", "recurrent_state"][:, :-1])
    primer = get_primers_from_module(gru)
    assert isinstance(primer, TensorDictPrimer)
    env.reset()
    (declared,) = (stage for stage in env.transform if isinstance(stage, TensorDictPrimer))
    wanted = primer.primers["recurrent_state"].expand(2, 1, 64)
    assert declared.primers["recurrent_state"] == wanted


@pytest.fixture
def _same_threads() -> Iterator[None]:
    """Restore the number of torch threads after a training."""
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


@pytest.mark.usefixtures("_same_threads")
@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1"])
@exhaustive
def test_ppo_trains_the_same_weights_in_processes(
    env_id: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    chunks, run = [], ChunkPool.run

    def count(self: ChunkPool, *arguments: Any) -> Any:
        chunks.append(run(self, *arguments))
        return chunks[-1]

    monkeypatch.setattr(ChunkPool, "run", count)
    module = import_module("sample_pipelines.ppo")
    found = [
        module.main(["--env", env_id, "--backend", backend, "--envs", "3", "--steps", "768"])
        for backend in ("serial", "parallel")
    ]
    assert len(chunks) >= 2
    assert None not in chunks
    assert found[0].returns == found[1].returns
    for serial, parallel in zip(*(each.policy.parameters() for each in found), strict=True):
        assert torch.equal(serial, parallel)
    assert capsys.readouterr().out.count("768 steps in") == 2


def test_ppo_steps_the_envs_of_stable_baselines3(monkeypatch: pytest.MonkeyPatch) -> None:
    vec_env = pytest.importorskip("stable_baselines3.common.vec_env")
    # The same interface without processes.
    monkeypatch.setattr(vec_env, "SubprocVecEnv", vec_env.DummyVecEnv)
    module = import_module("sample_pipelines.ppo")
    collector = module.SB3Collector("CartPole-v1", 2)
    with torch.no_grad():
        steps = collector.collect(module.Policy(module.TASKS["CartPole-v1"]))
    collector.close()
    following, done = steps["next", "observation"][:, :-1], steps["next", "done"][:, :-1, 0]
    is_followed = (following == steps["observation"][:, 1:]).all(-1)
    assert torch.equal(is_followed, ~done)
    assert done.any()
    lengths = done[0].nonzero().flatten().diff(prepend=torch.tensor([-1]))
    assert torch.equal(steps["next", "episode_reward"][0, :-1, 0][done[0]].long(), lengths)
    assert torch.equal(steps["next", "terminated"], steps["next", "done"])

"""Every sample pipeline is checked and rolled out."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from tensordict.nn import TensorDictModule, TensorDictSequential
from torch import nn

from tdx import GRUModule, TensorDictPrimer, get_primers_from_module
from tdx.pipeline import Pipeline, build_env, read_pipeline, validate

FOLDER = Path(__file__).parents[2] / "sample_pipelines"
SAMPLES = sorted(FOLDER.glob("*.yaml"))
NEEDS = {"atari_pixels": "ale_py", "mujoco": "mujoco"}


def sample(name: str) -> Pipeline:
    package = NEEDS.get(name)
    if package is not None and find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    return read_pipeline((FOLDER / f"{name}.yaml").read_text(encoding="utf-8"), f"{name}.yaml")


@pytest.mark.parametrize("name", [path.stem for path in SAMPLES])
def test_it_is_valid_and_rolls_out(name: str) -> None:
    pipeline = sample(name)
    assert validate(pipeline) == []
    env = build_env(pipeline)
    try:
        env.set_seed(0)
        rollout = env.rollout(3)
        assert rollout.shape[-1] == 3
        for key, spec in env.observation_spec.items(True, True):
            value = rollout["next", key].movedim(env.ndim, 0)
            assert spec.why_not_in(value) is None, key
    finally:
        env.close()


def test_r3m_encoder_gives_vectors_and_no_pictures() -> None:
    env = build_env(sample("r3m_encoder"))
    assert env.observation_spec["r3m_vec"].shape == (512,)
    assert "pixels" not in env.observation_spec.keys()


def test_recurrent_policy_runs_with_the_primer_that_its_module_makes() -> None:
    env = build_env(sample("recurrent_policy"))
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

"""Train, freeze, save; lose the statistics and fail; load them and pass.

``TDX_CONTRACT_TRAINING=minute`` trains for about a minute instead of a second.
"""

from __future__ import annotations

import os
import re
import textwrap
from pathlib import Path

import pytest

from tdx.cli.process import run
from tests.programs import exhaustive

TRAININGS = {"second": (64, 1, 128), "minute": (2_048, 10, 81_920)}
"""Steps of each sub-env and epochs of an update, and steps of the whole training."""
ROLLOUT, EPOCHS, STEPS = TRAININGS[os.environ.get("TDX_CONTRACT_TRAINING", "second")]

SCRIPT = f"""
from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecNormalize


def train():
    env = VecNormalize(make_vec_env("Pendulum-v1", n_envs=2, seed=0))
    model = PPO("MlpPolicy", env, n_steps={ROLLOUT}, n_epochs={EPOCHS}, seed=0, device="cpu")
    model.learn({STEPS})
    env.save("statistics.pkl")
    return model


def forgotten():
    return VecNormalize(make_vec_env("Pendulum-v1"), training=False, norm_reward=False)


def deployed():
    env = VecNormalize.load("statistics.pkl", make_vec_env("Pendulum-v1"))
    env.training = env.norm_reward = False
    return env
"""


@pytest.mark.timeout(900)
@exhaustive
def test_forgotten_statistics_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("pendulum.py").write_text(textwrap.dedent(SCRIPT))
    assert (
        run(["contract", "record", "pendulum.py:train", "--allow-code", "--out", "contract"]) == 0
    )
    assert sorted(each.name for each in Path("contract").iterdir()) == [
        "calls.json",
        "contract.yaml",
        "golden.safetensors",
    ]
    assert sum(each.stat().st_size for each in Path("contract").iterdir()) < 2**20
    assert "VecNormalize" in Path("contract/contract.yaml").read_text()
    capsys.readouterr()

    check = ["contract", "check", "--allow-code", "--against", "contract"]
    assert run([*check, "pendulum.py:forgotten"]) == 1
    out = capsys.readouterr().out
    sentence = next(line for line in out.splitlines() if line.startswith("TDX"))
    assert "VecNormalize" in sentence
    counts = re.search(r"its count \(obs_rms.count\) is 0.0001, in the contract ([\d,]+)", sentence)
    assert counts is not None
    # The reset counts too.
    assert int(counts[1].replace(",", "")) >= STEPS

    assert run([*check, "pendulum.py:deployed"]) == 0
    assert "same" in capsys.readouterr().out
    assert run([*check, "--eval", "--env", "pendulum.py:deployed"]) == 0

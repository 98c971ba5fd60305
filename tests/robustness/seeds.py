"""Valid files that the fuzzer damages."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from torch import nn

from tdx import Pipeline, export_dump, save_mlp_policy
from tdx.rollouts import DumpRequest, Goal, Progress, roll_out
from tests.cli.processes import run
from tests.robustness.cases import FORMATS


def make_seeds(folder: Path) -> Path:
    """Write dumps, exports, a profile, actions and a configuration to ``folder``; return it."""
    pipeline = Pipeline.of("CartPole-v1", "RewardSum", "VecNorm")
    for name, raw, after in (("dump", False, None), ("raw", True, None), ("unfinished", False, 2)):
        request = DumpRequest(pipeline, Goal(steps=40), seed=0, chunk_steps=10, raw=raw)
        try:
            roll_out(request, folder / name, on_chunk=_Stop(after))
        except KeyboardInterrupt:
            assert after is not None
    for kind, name in FORMATS.items():
        export_dump(folder / "dump", folder / name, to=kind)
    actions = np.zeros((5, 1), np.float32)
    np.save(folder / "actions.npy", actions)
    layers = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))
    save_mlp_policy(layers, folder / "policy.safetensors")
    (folder / "actions.json").write_text(json.dumps(actions.tolist()))
    ended = run("config", "init", before=lambda: _use_config(folder / "config.toml"))
    assert ended.code == 0, ended.err
    text = (folder / "config.toml").read_text().replace("# num_envs", "num_envs")
    (folder / "config.toml").write_text(text)
    profile = ("profile", "--env", "Pendulum-v1", "--steps", "20", "--repeat", "2", "--warmup", "0")
    ended = run(*profile, "--save", str(folder / "profile.json"))
    assert ended.code == 0, ended.err
    return folder


def _use_config(path: Path) -> None:
    import os

    os.environ["TDX_CONFIG"] = str(path)


class _Stop:
    """Callback that interrupts a rollout after a number of chunks."""

    def __init__(self, after: int | None) -> None:
        self._left = after

    def __call__(self, progress: Progress) -> None:
        if self._left is not None:
            self._left -= 1
            if self._left == 0:
                raise KeyboardInterrupt

"""P18: the specs of a chain with many stages over many entries."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from tdx import EnvConfig, Pipeline
from tdx.cli.process import run
from tdx.pipeline import write_pipeline
from tests.benchmarks.bars import LONG_CHECK, LONG_SPEC, Bar
from tests.benchmarks.conftest import Compare, Run

ENTRIES, STAGES, FEW_STAGES = 300, 200, 2
KINDS = (
    'ObservationNorm(0.0, 1.5, in_keys=["entry_{0}"])',
    'CatFrames(2, dim=-1, in_keys=["entry_{0}"], out_keys=["stack_{0}"])',
    "RewardScaling(0.0, 0.99)",
    'RewardSum(out_keys=["sum_{0}"])',
)


class ManyEntries(gymnasium.Env[Any, Any]):
    """Env with many entries."""

    action_space = spaces.Box(-1, 1, (2,), np.float32)
    observation_space = spaces.Dict(
        {f"entry_{index}": spaces.Box(-1, 1, (4,), np.float32) for index in range(ENTRIES)}
    )

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return {name: np.zeros(4, np.float32) for name in self.observation_space}, {}

    def step(self, action: Any) -> Any:
        return self.reset()[0], 0.0, False, False, {}


@pytest.mark.parametrize(
    ("bar", "arguments"),
    [(LONG_SPEC, ["inspect", "spec"]), (LONG_CHECK, ["check"])],
    ids=["spec", "check"],
)
def test_command_with_a_long_chain(
    compare: Compare, bar: Bar, arguments: list[str], tmp_path: Path, monkeypatch: Any
) -> None:
    """Compare a long and a short chain in this process, where all modules are imported."""
    make: Any = ManyEntries
    spec = gymnasium.envs.registration.EnvSpec("ManyEntries-v0", entry_point=make)
    monkeypatch.setitem(gymnasium.registry, "ManyEntries-v0", spec)
    monkeypatch.setenv("TDX_CONFIG", str(tmp_path / "config.toml"))

    def command(stages: int) -> Run:
        chain = [KINDS[index % len(KINDS)].format(index) for index in range(stages)]
        path = tmp_path / f"{stages}.yaml"
        path.write_text(write_pipeline(Pipeline.of(EnvConfig("ManyEntries-v0"), *chain)))
        assert run([*arguments, "--pipeline", str(path)]) in (0, 1)
        return Run(lambda: run([*arguments, "--pipeline", str(path)]))

    compare(bar, {"tdx": command(STAGES), "bare": command(FEW_STAGES)}, rounds=5)

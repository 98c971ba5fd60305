"""Artifacts of two chains, to be damaged."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import tdx
from tdx.artifacts.artifact import write_artifact
from tdx.artifacts.functions import chain_functions
from tests.artifacts.random_chains import Vectors

STAGES: list[list[Any]] = [
    [
        tdx.ObservationNorm(0.5, torch.tensor([2.0, 0.25, 3.0]), in_keys=["observation"]),
        tdx.CatFrames(3, dim=-1, in_keys=["observation"]),
        tdx.ClipTransform(in_keys=["joints"], low=-0.5, high=1.5),
        tdx.StepCounter(5),
        tdx.RewardSum(),
        tdx.ActionScaling(),
    ],
    [
        tdx.CatTensors(["joints", "observation"], "state"),
        tdx.CatFrames(2, -1, ["state"], ["stack"], "constant", 0.75),
        tdx.RewardScaling(0.3, 1.7),
        tdx.TargetReturn(7.0),
        tdx.InitTracker(),
    ],
]


@pytest.fixture(scope="module")
def chains() -> list[Any]:
    return [
        chain_functions(
            tdx.TransformedEnv(Vectors(3, 2), tdx.Compose(*(stage.clone() for stage in stages))),
            "chain",
            [type(stage).__name__ for stage in stages],
        )
        for stages in STAGES
    ]


@pytest.fixture(scope="module")
def write(chains: list[Any], tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Return a function that writes an artifact once for each form and chain."""
    root, known = tmp_path_factory.mktemp("artifacts"), set()

    def written(form: str, number: int) -> Path:
        folder = root / f"{form}_{number}"
        if folder not in known:
            assert write_artifact(chains[number], form, folder).verified
            known.add(folder)
        return folder

    return written

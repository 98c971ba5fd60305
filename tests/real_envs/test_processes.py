"""The command-line program on one env of each kind."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.cli.processes import run


def tdx(*arguments: str) -> Any:
    """What ``tdx`` prints as JSON."""
    completed = run(*arguments, "--format", "json")
    assert completed.code == 0, completed.err
    return json.loads(completed.out)


@pytest.mark.parametrize("num_envs", [1, 4])
@pytest.mark.parametrize(
    ("env_id", "module", "stage", "shapes"),
    [
        ("Pendulum-v1", "gymnasium", "StepCounter", {"observation": [3], "step_count": [1]}),
        (
            "BabyAI-GoToLocal-v0",
            "minigrid",
            'ToTensorImage(in_keys=["image"])',
            {"image": [3, 7, 7], "direction": [4], "mission": []},
        ),
    ],
)
def test_the_command_prints_the_specs(
    env_id: str, module: str, stage: str, shapes: dict[str, list[int]], num_envs: int
) -> None:
    pytest.importorskip(module)
    report = tdx("inspect", "spec", "--env", env_id, "--num-envs", str(num_envs), "--t", stage)
    found = {key["key"]: key["after"] for key in report["keys"] if key["part"] == "observation"}
    assert {key: after["shape"] for key, after in found.items()} == {
        key: [num_envs, *shape] for key, shape in shapes.items()
    }


def test_output_of_an_env_is_not_in_the_result() -> None:
    """BabyAI tells on stdout of every level that it throws away."""
    pytest.importorskip("minigrid")
    report = tdx("check", "--env", "BabyAI-GoToLocal-v0", "--num-envs", "4", "--seed", "0")
    assert report["ok"] is True

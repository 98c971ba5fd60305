"""Envs with their own stages: a factory that returns a ``TransformedEnv``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from tensordict import TensorDictBase

from tdx import ActionScaling, Compose, GymEnv, RewardScaling, StepCounter, TransformedEnv
from tdx.foundation.errors import ExitCode
from tdx.inspection.overview import EnvCache, inspect_overview
from tdx.pipeline import Pipeline
from tdx.transforms import Transform

if TYPE_CHECKING:
    from tests.cli.conftest import Tdx

NAMES = ["RewardScaling", "StepCounter", "ActionScaling", "RewardSum"]


def make_env() -> TransformedEnv:
    """Return an env with three stages in two chains."""
    inner = TransformedEnv(GymEnv("Pendulum-v1"), Compose(RewardScaling(0.0, 0.1), StepCounter(5)))
    return TransformedEnv(inner, ActionScaling())


class Undeclared(Transform):
    """Transform that writes an undeclared key."""

    def _call(self, next_tensordict: TensorDictBase) -> TensorDictBase:
        return next_tensordict.set("extra", torch.ones(1))

    def _reset(
        self, tensordict: TensorDictBase | None, tensordict_reset: TensorDictBase
    ) -> TensorDictBase:
        return self._call(tensordict_reset)


def make_undeclared() -> TransformedEnv:
    return TransformedEnv(GymEnv("Pendulum-v1"), Undeclared())


class Failing(Transform):
    """Transform that raises in every step."""

    def _step(self, tensordict: TensorDictBase, next_tensordict: TensorDictBase) -> TensorDictBase:
        raise ValueError("it fails")


def named(function: Any) -> tuple[str, ...]:
    return ("--env", f"{__name__}:{function.__name__}", "--allow-code")


def data_of(tdx: Tdx, *arguments: str) -> Any:
    outcome = tdx(*arguments, "--format", "json")
    assert outcome.code == ExitCode.OK, outcome.err
    return json.loads(outcome.out)


@pytest.mark.parametrize("report", ["spec", "chain", "plan"])
def test_stages_of_the_env_are_listed_first(tdx: Tdx, report: str) -> None:
    data = data_of(tdx, "inspect", report, *named(make_env), "--t", "RewardSum")
    assert [(each["stage"], each["transform"]) for each in data["stages"]] == list(enumerate(NAMES))
    assert data["stages"][0]["call"].startswith("RewardScaling(loc=0.0000")
    assert data["stages"][-1]["call"] == "RewardSum"


def test_stages_of_the_env_are_listed_without_pipeline_stages(tdx: Tdx) -> None:
    data = data_of(tdx, "inspect", "spec", *named(make_env))
    assert [each["transform"] for each in data["stages"]] == NAMES[:3]
    outcome = tdx("inspect", "spec", *named(make_env), "--stages")
    assert "after stage 2  ActionScaling" in outcome.out


def test_keys_and_values_name_every_stage(tdx: Tdx) -> None:
    keys = data_of(tdx, "inspect", "keys", *named(make_env), "--t", "RewardSum")
    assert [each["call"].partition("(")[0] for each in keys["stages"]] == NAMES
    values = tdx("inspect", "values", *named(make_env), "--t", "RewardSum")
    assert "3 RewardSum" in values.out
    assert "2 ActionScaling (inverse)" in values.out


def test_plan_lists_the_stages_of_a_compose(tdx: Tdx) -> None:
    stage = "Compose(StepCounter(), RewardSum())"
    data = data_of(tdx, "inspect", "plan", "--env", "Pendulum-v1", "--t", stage)
    assert [each["transform"] for each in data["stages"]] == ["StepCounter", "RewardSum"]


def test_report_page_names_every_stage(tdx: Tdx, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    outcome = tdx(
        *("report", *named(make_env), "--t", "RewardSum", "--steps", "7", "-o", str(page))
    )
    assert outcome.code == ExitCode.OK, outcome.err
    text = page.read_text()
    assert all(f"{index} {name}" in text for index, name in enumerate(NAMES))


def test_check_names_the_stages_of_the_env(tdx: Tdx) -> None:
    assert data_of(tdx, "check", *named(make_env), "--t", "RewardSum")["stages"] == 4
    outcome = tdx(
        *("check", *named(make_undeclared), "--t", "ObservationNorm(0.0, 1.0)"),
        *("--format", "json"),
    )
    found = json.loads(outcome.out)["findings"]
    assert {(each["stage"], each["transform"]) for each in found} == {
        (0, "Undeclared"),
        (1, "ObservationNorm"),
    }


def test_check_numbers_stages_after_the_stages_of_the_env(tdx: Tdx, tmp_path: Path) -> None:
    file = tmp_path / "chain.yaml"
    file.write_text(
        f"version: 1\nenv: {__name__}:make_env\ntransforms:\n"
        "  - RewardSum: {}\n  - CatFrames: {N: 2, dim: -1, in_keys: [missing]}\n"
    )
    outcome = tdx("check", str(file), "--allow-code", "--format", "json")
    (finding,) = json.loads(outcome.out)["findings"]
    assert (finding["stage"], finding["transform"], finding["line"]) == (4, "CatFrames", 5)


def test_error_in_a_step_counts_from_the_innermost_stage() -> None:
    env = TransformedEnv(make_env(), Compose(StepCounter(step_count_key="n"), Failing()))
    with pytest.raises(Exception, match=r"stage 4 \(Failing\)"):
        env.rollout(1)
    alone = TransformedEnv(make_env(), Failing())
    with pytest.raises(Exception, match=r"stage 3 \(Failing\)"):
        alone.rollout(1)


def test_overview_separates_the_stages_of_the_env() -> None:
    pipeline = Pipeline.of(f"{__name__}:make_env", "RewardSum", 'CatFrames(2, -1, ["missing"])')
    bench = EnvCache(allow_code=True)
    found = inspect_overview(pipeline, bench)
    bench.close()
    assert found.env_stages == tuple(NAMES[:3])
    assert found.working == (0,)
    assert [each.problem is None for each in found.stages] == [True, False]
    assert found.lineage is not None
    assert list(found.lineage.stages) == NAMES

"""Sweeps: parsing, cells, failing cells and growth."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tdx.foundation.errors import ArgumentError, TdxError, UnknownNameError
from tdx.pipeline import Dtype, Pipeline
from tdx.profiling import sweep as sweeping
from tdx.profiling.result import Profile
from tdx.profiling.run import ProfilePlan, profile_env
from tdx.profiling.sweep import (
    SweepAxis,
    SweepResult,
    apply_point,
    fit_exponent,
    fit_growth,
    list_points,
    parse_sweep,
    run_sweep,
)
from tests.programs import exhaustive

PIPELINE = Pipeline.of("tdx/Pendulum", "RewardScaling(0.0, 0.1)", "RewardSum")
PIXELS = Pipeline.of("CartPole-v1", "ToTensorImage", "Resize(84, 84)")
SHORT = ProfilePlan(steps=5, warmup=0, repeats=1, passes=())


def swept(*texts: str, pipeline: Pipeline = PIPELINE, **others: Any) -> SweepResult:
    return run_sweep(pipeline, parse_sweep(texts, pipeline), plan=SHORT, **others)


def test_sweeps_are_parsed() -> None:
    texts = ["num_envs=1,8 device=cpu,cuda", "dtype=float32,half", "Resize.w=42,84"]
    assert parse_sweep(texts, PIXELS) == (
        SweepAxis("num_envs", (1, 8)),
        SweepAxis("device", ("cpu", "cuda")),
        SweepAxis("dtype", (Dtype("float32"), Dtype("float16"))),
        SweepAxis("Resize.w", (42, 84)),
    )
    (axis,) = parse_sweep(["1.interpolation=bilinear,nearest"], PIXELS)
    assert axis.values == ("bilinear", "nearest")
    (axis,) = parse_sweep(['0.in_keys=["pixels"],["a", "b"]'], PIXELS)
    assert axis.values == (("pixels",), ("a", "b"))


@pytest.mark.parametrize(
    ("text", "kind", "expected"),
    [
        ("num_evns=1", UnknownNameError, "did you mean num_envs?"),
        ("Resise.w=1", UnknownNameError, "did you mean Resize?"),
        ("Resize.width=1", UnknownNameError, "it takes w, h, interpolation"),
        ("7.w=1", UnknownNameError, "unknown sweep setting '7.w'"),
        ("mode=eagre", UnknownNameError, "did you mean eager?"),
        ("dtype=flaot32", UnknownNameError, "float32"),
        ("num_envs=0", ArgumentError, "at least 1, got '0'"),
        ("num_envs=many", ArgumentError, "got 'many'"),
        ("num_envs=", ArgumentError, "for example num_envs=1,8,64"),
        ("num_envs", ArgumentError, "for example num_envs=1,8,64"),
        ("num_envs=1,1", ArgumentError, "same value twice"),
        ("steps=1 steps=2", ArgumentError, "steps is swept twice"),
    ],
)
def test_invalid_sweeps_are_refused(text: str, kind: type[TdxError], expected: str) -> None:
    with pytest.raises(kind) as raised:
        parse_sweep([text], PIXELS)
    assert expected in str(raised.value)


def test_point_changes_env_and_stages() -> None:
    made = apply_point(PIXELS, {"num_envs": 8, "Resize.w": 42, "dtype": Dtype("float64")})
    assert made.env.num_envs == 8
    assert made.transforms[0].kwargs == {"dtype": Dtype("float64")}
    assert made.transforms[1].kwargs == {"w": 42, "h": 84}
    cast = apply_point(PIPELINE, {"dtype": Dtype("float64")}).transforms
    assert [stage.name for stage in cast] == ["DTypeCastTransform", "RewardScaling", "RewardSum"]
    assert apply_point(PIPELINE, {"dtype": Dtype("float32")}) == PIPELINE


@exhaustive
def test_every_cell_has_a_profile() -> None:
    found = swept("num_envs=1,4", "dtype=float32,float64", "mode=eager,planned")
    assert len(found.cells) == 8
    for cell in found.cells:
        assert cell.problem is None
        assert cell.profile is not None
        assert cell.profile.settings.num_envs == cell.point["num_envs"]
        assert [mode.mode for mode in cell.profile.modes] == [cell.point["mode"]]
        assert cell.profile.modes[0].step_us > 0
    assert found.cells[0].label == "num_envs=1 dtype=float32 mode=eager"
    total = [each for each in fit_growth(found) if each.label == "step"]
    assert len(total) == 4
    assert all(each.values == (1, 4) and each.slope is not None for each in total)


@pytest.mark.skipif(torch.cuda.is_available(), reason="that device is there")
@exhaustive
def test_missing_device_fails_one_cell() -> None:
    found = swept("device=cuda,nonsense,cpu")
    assert [cell.profile is None for cell in found.cells] == [True, True, False]
    assert "device cuda is not available" in (found.cells[0].problem or "")
    assert "device nonsense is not available" in (found.cells[1].problem or "")


@exhaustive
def test_too_many_envs_are_refused_before_measuring() -> None:
    found = swept("num_envs=1000000000000,2")
    assert "does not fit into memory: 1000000000000 envs need" in (found.cells[0].problem or "")
    assert found.cells[1].problem is None


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("CUDA out of memory.")])
@exhaustive
def test_out_of_memory_error_fails_one_cell(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(env: Any, modes: Any, plan: Any) -> Profile:
        if env.batch_size.numel() == 4:
            raise error
        return profile_env(env, modes, plan)

    monkeypatch.setattr(sweeping, "profile_env", failing)
    found = swept("num_envs=2,4,8")
    assert [cell.problem for cell in found.cells] == [None, "does not fit into memory", None]


@exhaustive
def test_stage_that_cannot_be_built_fails_one_cell() -> None:
    found = swept("RewardScaling.scale=1.0,none", "num_envs=2")
    assert found.cells[0].problem is None
    assert "scale" in (found.cells[1].problem or "")


@exhaustive
def test_interrupt_keeps_earlier_cells() -> None:
    def stop(env: Any) -> None:
        if env.batch_size.numel() == 4:
            raise KeyboardInterrupt

    found = swept("num_envs=1,2,4", policy_of=stop)
    assert found.interrupted
    assert [cell.point["num_envs"] for cell in found.cells] == [1, 2]


def test_points_are_all_combinations_in_order() -> None:
    points = list_points([SweepAxis("a", (1, 2)), SweepAxis("b", (3, 4))])
    assert [tuple(point.values()) for point in points] == [(1, 3), (1, 4), (2, 3), (2, 4)]


def test_exponent_of_growth_is_fitted() -> None:
    assert fit_exponent([1, 8, 64], [5.0, 5.0, 5.0]) == pytest.approx(0)
    assert fit_exponent([1, 8, 64], [5.0, 40.0, 320.0]) == pytest.approx(1)
    assert fit_exponent([1, 4, 16], [1.0, 16.0, 256.0]) == pytest.approx(2)
    assert fit_exponent([8], [1.0]) is None
    assert fit_exponent([1, 8], [0.0, 1.0]) is None

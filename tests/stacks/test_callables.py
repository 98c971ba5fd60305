"""Data pipelines of callables as stacks: their parts, values and contracts."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.decomposition import PCA
from sklearn.dummy import DummyClassifier
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import MaxAbsScaler, StandardScaler

import tdx
from tdx.foundation.errors import ArgumentError
from tdx.inspection.values_report import inspect_values
from tdx.stacks import Stack
from tdx.stacks.callables import CallableStack
from tests.programs import exhaustive

Samples = list[dict[str, Any]]


def vectors(count: int = 3) -> Samples:
    return [{"state": np.full(4, i + 1, np.float32)} for i in range(count)]


def images(count: int = 3) -> Samples:
    rng = np.random.default_rng(0)
    return [{"image": rng.integers(0, 256, (16, 12, 3), np.uint8)} for _ in range(count)]


def double(sample: dict[str, Any]) -> dict[str, Any]:
    return {**sample, "state": sample["state"] * 2}


def triple(sample: dict[str, Any]) -> dict[str, Any]:
    return {**sample, "state": sample["state"] * 3}


def sum_up(sample: dict[str, Any]) -> dict[str, Any]:
    return {"total": sample["state"].sum()}


def last_values(stack: Stack) -> dict[tuple[str, str], Any]:
    report = inspect_values(stack, steps=1)
    assert report.error is None
    assert report.violations == ()
    return {
        (stage.name, str(stats.key)): stats
        for stage in report.phases[-1].stages
        for stats in stage.values
    }


def assert_keeps_its_contract(stack: Stack) -> None:
    report = tdx.check_contract(stack, tdx.freeze(stack))
    assert report.same
    assert report.coverage.values == report.coverage.all_values > 0


def test_list_of_functions_of_a_dict() -> None:
    stack = tdx.open_stack([double, sum_up], vectors())
    assert [stage.name for stage in stack.stages] == ["double", "sum_up"]
    assert last_values(stack)["sum_up", "total"].minimum == 16
    assert_keeps_its_contract(stack)


def test_list_of_functions_of_an_array() -> None:
    stack = tdx.open_stack([np.square, np.sqrt], vectors())
    assert last_values(stack)["square", "state"].maximum == 4
    assert_keeps_its_contract(stack)


def test_inputs_of_a_group_as_openpi_has_it_are_the_parts() -> None:
    group = SimpleNamespace(inputs=[double, triple], outputs=[sum_up])
    stack = tdx.open_stack(group, vectors())
    assert [stage.name for stage in stack.stages] == ["double", "triple"]
    assert last_values(stack)["triple", "state"].maximum == 12
    assert_keeps_its_contract(stack)


def test_single_function_is_a_pipeline_of_one_part() -> None:
    stack = tdx.open_stack(double, vectors())
    assert [stage.name for stage in stack.stages] == ["double"]
    assert_keeps_its_contract(stack)


@exhaustive
def test_sequential_has_its_modules_and_their_parameters() -> None:
    network = torch.nn.Sequential(torch.nn.Linear(4, 2), torch.nn.Tanh())
    stack = tdx.open_stack(network, vectors())
    assert [stage.name for stage in stack.stages] == ["Linear", "Tanh"]
    assert any(value.shape == (2, 4) for value in stack.state()[0].values())
    assert_keeps_its_contract(stack)
    with torch.no_grad():
        other = torch.nn.Sequential(torch.nn.Linear(4, 2), torch.nn.Tanh())
    report = tdx.check_contract(tdx.open_stack(other, vectors()), tdx.freeze(stack))
    assert report.first is not None
    assert report.first.name == "Linear"


@pytest.mark.parametrize("version", [1, 2])
@exhaustive
def test_compose_gets_images(version: int) -> None:
    pytest.importorskip("torchvision")
    from torchvision import transforms
    from torchvision.transforms import v2

    if version == 1:
        compose: Any = transforms.Compose([transforms.Resize((8, 8)), transforms.ToTensor()])
    else:
        compose = v2.Compose([v2.ToImage(), v2.Resize((8, 8)), v2.ToDtype(torch.float32, True)])
    stack = tdx.open_stack(compose, images())
    last = stack.specs()[-1].output_spec["full_observation_spec", "image"]
    assert (tuple(last.shape), last.dtype) == ((3, 8, 8), torch.float32)
    assert_keeps_its_contract(stack)


@exhaustive
def test_resampling_kernel_that_differs_is_found_at_its_part() -> None:
    pytest.importorskip("torchvision")
    from torchvision import transforms

    def build(kernel: Any) -> Any:
        resize = transforms.Resize((8, 8), interpolation=kernel)
        return transforms.Compose([resize, transforms.ToTensor()])

    bilinear = tdx.open_stack(build(transforms.InterpolationMode.BILINEAR), images())
    nearest = tdx.open_stack(build(transforms.InterpolationMode.NEAREST), images())
    report = tdx.check_contract(nearest, tdx.freeze(bilinear))
    assert report.first is not None
    assert (report.first.name, report.first.key) == ("Resize", "image")


def rows_of(samples: Samples) -> Any:
    return np.stack([sample["state"] for sample in samples])


@exhaustive
def test_pipeline_of_scikit_learn_gets_rows() -> None:
    inner = Pipeline([("skipped", "passthrough"), ("second", MaxAbsScaler())])
    steps = [("first", StandardScaler()), ("inner", inner), ("policy", DummyClassifier())]
    target = Pipeline(steps).fit(rows_of(vectors()), [0, 1, 1])
    stack = tdx.open_stack(target, vectors())
    assert [stage.name for stage in stack.stages] == ["StandardScaler", "MaxAbsScaler"]
    assert stack.notes == ["DummyClassifier is passed over: it has no transform"]
    assert stack.specs()[-1].output_spec["full_observation_spec", "state"].shape == (1, 4)
    assert_keeps_its_contract(stack)


def test_single_estimator_is_a_pipeline() -> None:
    stack = tdx.open_stack(StandardScaler().fit(rows_of(vectors())), vectors())
    assert [stage.name for stage in stack.stages] == ["StandardScaler"]
    assert_keeps_its_contract(stack)


def test_values_are_those_of_scikit_learn() -> None:
    target = Pipeline([("scale", StandardScaler()), ("pca", PCA(2))]).fit(rows_of(vectors()))
    stack = CallableStack(target, vectors())
    sample: Any = {"state": vectors()[0]["state"]}
    expected = target.transform(sample["state"][None])
    for part in stack.parts:
        sample = part.forward(sample)
    np.testing.assert_array_equal(sample["state"], expected)
    assert_keeps_its_contract(stack)


def test_statistics_of_another_training_are_found() -> None:
    trained = StandardScaler().fit(rows_of(vectors()))
    other = StandardScaler().fit(rows_of(vectors()) * 3)
    contract = tdx.freeze(tdx.open_stack(trained, vectors()))
    report = tdx.check_contract(tdx.open_stack(other, vectors()), contract)
    assert report.first is not None
    assert report.first.name == "StandardScaler"


def test_pipeline_that_fails_names_the_part() -> None:
    with pytest.raises(
        ArgumentError, match="triple cannot process the first sample: KeyError"
    ) as e:
        tdx.open_stack([sum_up, triple], vectors())
    assert (e.value.where.stage, e.value.where.transform) == (1, "triple")


def test_pipeline_needs_samples_and_an_env_takes_none() -> None:
    with pytest.raises(ArgumentError) as error:
        tdx.open_stack([double])
    assert "needs samples" in str(error.value.hint)
    with pytest.raises(ArgumentError, match="takes no samples"):
        tdx.open_stack(tdx.PendulumEnv(), vectors())

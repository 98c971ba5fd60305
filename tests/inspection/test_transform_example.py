"""Examples of transforms."""

from __future__ import annotations

import shlex

import pytest

from tdx import Reward2GoTransform
from tdx.inspection.transform_example import find_example
from tdx.pipeline import format_stage, load_catalog, parse_stage

ONE_OF_EACH_NEED = (
    "ActionScaling",
    "CatFrames",
    "DoubleToFloat",
    "GrayScale",
    "ObservationNorm",
    "RenameTransform",
    "Resize",
    "RewardClipping",
    "SqueezeTransform",
    "StepCounter",
    "TensorDictPrimer",
    "ToTensorImage",
)


@pytest.mark.parametrize("name", ONE_OF_EACH_NEED)
def test_example_shows_a_change(name: str) -> None:
    if name == "DoubleToFloat":
        pytest.importorskip("mujoco", reason="the only envs with float64 observations")
    example = find_example(load_catalog()[name])
    assert example is not None
    assert any(change.change != "same" for change in example.changes)


@pytest.mark.parametrize(
    ("name", "stage"),
    [
        ("SignTransform", 'SignTransform(["reward"])'),
        # No env has the entries of its docstring.
        ("Hash", 'Hash(in_keys=["observation"], out_keys=["hash"])'),
    ],
)
def test_example_reads_an_entry_of_the_env(name: str, stage: str) -> None:
    example = find_example(load_catalog()[name])
    assert example is not None
    assert example.pipeline is not None
    assert format_stage(example.pipeline.transforms[-1]) == stage


@pytest.mark.parametrize("name", load_catalog().names)
def test_every_transform_has_an_example(name: str) -> None:
    """A command, or code where it fits no common env or needs a Python object."""
    if name == "DoubleToFloat":
        pytest.importorskip("mujoco", reason="the only envs with float64 observations")
    example = find_example(load_catalog()[name])
    assert example is not None
    assert example.changes
    if example.pipeline is None:
        assert name in str(example.code)
        return
    *_, stage = example.pipeline.transforms
    assert stage.name == name
    words = shlex.split(str(example.command))
    assert words[:4] == ["tdx", "inspect", "spec", example.pipeline.env.id]
    assert parse_stage(words[-1]) == stage


@pytest.mark.parametrize(
    ("name", "key", "before", "after"),
    [
        ("FlattenAction", "action", (1, 1), (1,)),
        ("Reward2GoTransform", "reward_to_go", None, (4, 1)),
        ("BurnInTransform", "value", (2, 5, 1), (2, 2, 1)),
        ("TerminateTransform", "terminated", (1,), (1,)),
        ("ActionMask", "action_mask", (6,), (6,)),
    ],
)
def test_example_with_stored_data(
    name: str, key: str, before: tuple[int, ...] | None, after: tuple[int, ...]
) -> None:
    example = find_example(load_catalog()[name])
    assert example is not None
    change = next(one for one in example.changes if one.key == key)
    assert (change.before and change.before.shape) == before
    assert change.after is not None
    assert change.after.shape == after
    assert ("code" in example.to_dict()) == (example.command is None)


def test_transform_is_restored_after_its_example() -> None:
    own = dict(vars(Reward2GoTransform))
    find_example(load_catalog()["Reward2GoTransform"])
    assert dict(vars(Reward2GoTransform)) == own

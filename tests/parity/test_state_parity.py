"""The keys and shapes of every transform's ``state_dict`` against the oracle's."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import tdx
from tests.parity.twins import ORACLE
from tests.transforms.contract.examples import NAMES, example_of, made, rows_of

pytestmark = pytest.mark.filterwarnings("ignore")

DIFFERENT = {
    "ActionChunkTransform": "the oracle is a chain of two transforms",
    "BurnInTransform": "its modules are not part of a chain's state, as they are the policy's",
    "CatFrames": "frames of the running episode are not state: every reset overwrites them",
    "Hash": "its repertoire holds any values, and belongs to the caller",
    "R3MTransform": "the oracle is a chain of five transforms, whose constants it saves too",
    "TimeMaxPool": "steps of the running episode are not state, as with CatFrames",
    "TrajCounter": "its count is a tensor, which the state of an env contains too",
    "VecNorm": "statistics are buffers; the oracle puts them into an extra state",
    "VecNormV2": "statistics are buffers; the oracle puts them into an extra state",
}
"""Transforms whose state is another one than the oracle's, and why."""

ORACLE_ARGUMENTS: dict[str, dict[str, Any]] = {
    "ActionScaling": {"loc": torch.zeros(2), "scale": torch.ones(2)},
    "BurnInTransform": {"modules": [], "burn_in": 0},
    "ObservationNorm": {"loc": 0.5, "scale": 2.0, "in_keys": ["observation"]},
    "TensorDictPrimer": {"primers": {"hidden": ORACLE.Unbounded((2,))}},
}
"""Arguments for the oracle where it does not take those of the example."""

Shapes = dict[str, tuple[int, ...]]


def shapes(state: dict[str, Any]) -> Shapes:
    return {
        key: tuple(value.shape) if isinstance(value, Tensor) else (-1,)
        for key, value in state.items()
    }


def state_here(name: str) -> Shapes:
    transform = made(name)
    if not example_of(name).offline:
        tdx.TransformedEnv(rows_of(name), transform).output_spec  # noqa: B018
    return shapes(transform.state_dict())


def state_there(name: str) -> Shapes | None:
    """The oracle's state; ``None`` where it is not known before a rollout."""
    arguments = dict(ORACLE_ARGUMENTS.get(name, example_of(name).arguments))
    twin = getattr(ORACLE, name)(*arguments.pop("*", ()), **arguments)
    try:
        return shapes(twin.state_dict())
    except ValueError:
        return None


@pytest.mark.parametrize("name", [name for name in NAMES if hasattr(ORACLE, name)])
def test_state_dicts(name: str) -> None:
    if name == "BurnInTransform":
        assert state_here(name) == {}
        return
    assert (state_here(name) == state_there(name)) == (name not in DIFFERENT)


def test_every_transform_has_a_twin() -> None:
    missing = {name for name in NAMES if not hasattr(ORACLE, name)}
    assert missing == {name for name in NAMES if example_of(name).no_twin is not None}


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("RewardClipping", {"clamp_min": -0.5, "clamp_max": 0.25}),
        ("RewardScaling", {"loc": 0.5, "scale": 2.0, "standard_normal": True}),
        (
            "ObservationNorm",
            {"loc": 0.5, "scale": 2.0, "in_keys": ["reward"], "standard_normal": True},
        ),
    ],
)
def test_a_state_of_the_oracle_can_be_loaded(name: str, arguments: dict[str, Any]) -> None:
    theirs = getattr(ORACLE, name)(**arguments)
    other = {"clamp_min": 0.0, "clamp_max": 9.0} if "Clipping" in name else {"loc": 0, "scale": 1}
    ours = getattr(tdx, name)(**other, in_keys=["reward"])
    ours.load_state_dict(theirs.state_dict())
    reward = torch.linspace(-2.0, 2.0, 9)
    assert torch.equal(ours(reward=reward), theirs(reward=reward))
    theirs.load_state_dict(ours.state_dict())

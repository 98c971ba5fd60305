"""Arguments of stages: when two are equal, and what a contract reports."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box

import tdx
from tdx.compare.arguments import changed_arguments, is_same_argument, plain_argument
from tdx.contracts import load_contract, save_contract
from tests.programs import exhaustive

SIZE = 100


class Wide(gym.Env[Any, Any]):
    observation_space = Box(-10, 10, (SIZE,), np.float32)
    action_space = Box(-1, 1, (1,), np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return np.zeros(SIZE, np.float32), {}

    def step(self, action: Any) -> Any:
        return np.ones(SIZE, np.float32), 0.0, False, False, {}


class Clip(gym.ObservationWrapper[Any, Any, Any], gym.utils.RecordConstructorArgs):
    """A clip that no value of the env reaches."""

    def __init__(self, env: Any, high: Any) -> None:
        gym.utils.RecordConstructorArgs.__init__(self, high=high)
        gym.ObservationWrapper.__init__(self, env)
        self.high = high

    def observation(self, observation: Any) -> Any:
        return np.minimum(observation, np.asarray(self.high)).astype(np.float32)


def limits(at: int | None = None, dtype: Any = np.float64) -> Any:
    high = np.full(SIZE, 5.1, dtype)
    if at is not None:
        high[at] = 6
    return high


@exhaustive
def test_a_contract_reports_a_large_array_that_differs(tmp_path: Path) -> None:
    save_contract(tdx.freeze(Clip(Wide(), limits())), tmp_path / "contract")
    contract = load_contract(tmp_path / "contract")
    report = tdx.check_contract(Clip(Wide(), limits(at=80)), contract)
    (difference,) = report.differences
    assert (difference.kind, difference.stage) == ("argument", 0)
    assert difference.message == (
        "high is an array [100] of 5.1 to 6 instead of an array [100] of 5.1 to 5.1; "
        "no difference of values is observed"
    )
    assert tdx.check_contract(Clip(Wide(), limits(dtype=np.float32)), contract).same


@pytest.mark.parametrize("kind", [list, np.asarray, torch.tensor])
def test_arrays_and_lists_of_any_library_are_equal(kind: Any) -> None:
    assert is_same_argument(plain_argument(limits()), plain_argument(kind(limits().tolist())))
    assert not is_same_argument(plain_argument(limits(3)), plain_argument(kind(limits().tolist())))


def test_values_that_a_hash_could_miss() -> None:
    values = np.zeros(SIZE)
    values[:4] = np.nan, np.inf, 1e-300, -0.0
    assert is_same_argument(plain_argument(values), plain_argument(values.copy()))
    for index, other in enumerate((0.0, -np.inf, 2e-300, 1e-9)):
        changed = values.copy()
        changed[index] = other
        assert not is_same_argument(plain_argument(values), plain_argument(changed))


@pytest.mark.parametrize("unrecorded", ["<ndarray>", [5.1] * 64])
def test_contracts_without_fingerprints_report_no_array(unrecorded: object) -> None:
    assert is_same_argument(unrecorded, plain_argument(limits(at=80)))


@pytest.mark.parametrize(
    ("a", "b", "exact", "rounded"),
    [
        (1, 1.0, False, True),
        (True, 1, False, False),
        (0.1, float(np.float32(0.1)), False, True),
        # Counts are never rounded.
        (2_000_000, 2_000_001, False, False),
        (float("nan"), float("nan"), True, True),
        ((1, 2), (1, 2), True, True),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}, True, True),
        ("1", 1, False, False),
    ],
)
def test_equality(a: object, b: object, exact: bool, rounded: bool) -> None:
    assert is_same_argument(a, b) is exact
    assert is_same_argument(a, b, rtol=1e-6) is rounded
    assert [name for name, *_ in changed_arguments({"x": a}, {"x": b})] == ["x"] * (not exact)

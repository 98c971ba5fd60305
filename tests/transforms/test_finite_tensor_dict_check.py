"""Values that are not finite."""

from __future__ import annotations

import pytest
import torch
from tensordict import TensorDict

from tdx import FiniteTensorDictCheck, ObservationNorm, TransformedEnv
from tdx.foundation.errors import SpecError
from tests.transforms.envs import RowsEnv


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_stored_data(value: float) -> None:
    data = TensorDict(
        {"a": torch.ones(3), "next": {"b": torch.tensor([0.0, value])}, "c": torch.ones(1).int()}
    )
    with pytest.raises(SpecError, match=r"1 of 2 values of .next\.b. are not finite") as caught:
        FiniteTensorDictCheck()(data)
    assert caught.value.hint
    data["next", "b"] = torch.zeros(2)
    assert FiniteTensorDictCheck()(data) is data


def test_in_an_env() -> None:
    norm = ObservationNorm(0.0, 1.0, ["observation"])
    env = TransformedEnv(RowsEnv((2,)), norm).append_transform(FiniteTensorDictCheck())
    assert env.rollout(3).shape == (2, 2)
    norm.scale = torch.tensor(float("inf"))
    with pytest.raises(SpecError, match="'observation' are not finite"):
        env.rollout(3)

"""The oracle's own transforms and modules are refused by a chain of tdx."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torchrl.modules

from tdx import Compose, GymEnv, TransformedEnv
from tdx.foundation.errors import ArgumentError
from tests.parity.twins import ORACLE

pytestmark = pytest.mark.filterwarnings("ignore")


OBJECTS: dict[str, Callable[[], Any]] = {
    "VecNorm": lambda: ORACLE.VecNorm(in_keys=["observation"]),
    "RewardSum": lambda: ORACLE.RewardSum(),
    "Compose": lambda: ORACLE.Compose(ORACLE.StepCounter()),
    "class": lambda: ORACLE.RewardSum,
    "module": lambda: torchrl.modules.MLP(in_features=4, out_features=2, num_cells=[4]),
}


@pytest.mark.parametrize("foreign", OBJECTS.values(), ids=OBJECTS)
def test_the_oracles_objects_are_refused(foreign: Callable[[], Any]) -> None:
    with pytest.raises(ArgumentError, match="belongs to TorchRL") as caught:
        Compose(foreign())
    assert caught.value.hint
    with pytest.raises(ArgumentError, match="belongs to TorchRL"):
        TransformedEnv(GymEnv("CartPole-v1"), foreign())

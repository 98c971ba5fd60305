"""What is promised of images."""

from __future__ import annotations

import torch

from tdx import (
    Bounded,
    Compose,
    Resize,
    ToTensorImage,
    TransformedEnv,
    Unbounded,
    check_env_specs,
)
from tests.transforms.mocks import RowsEnv


def test_bytes_without_bounds_become_floats_with_bounds() -> None:
    class Rendered(RowsEnv):
        def __init__(self) -> None:
            super().__init__()
            observed = self.observation_spec.clone()
            observed.unlock_()
            observed["pixels"] = Unbounded((6, 7, 3), dtype=torch.uint8)
            self.observation_spec = observed

    env = TransformedEnv(Rendered(), Compose(ToTensorImage(), Resize(4)))
    check_env_specs(env)
    spec = env.observation_spec["pixels"]
    assert isinstance(spec, Bounded)
    assert (spec.low.min().item(), spec.high.max().item()) == (0, 1)
    kept = TransformedEnv(Rendered(), ToTensorImage(from_int=False))
    assert isinstance(kept.observation_spec["pixels"], Unbounded)

"""A project that uses tdx, checked by mypy against the installed package."""

from __future__ import annotations

from typing import assert_type

from torch import Tensor

import tdx
from tdx import (
    Bounded,
    CatFrames,
    CheckReport,
    Compose,
    EnvBase,
    GymEnv,
    Pipeline,
    RewardTransform,
    StepCounter,
    TransformedEnv,
)


class HalfReward(RewardTransform):
    """Halve every reward."""

    def _apply_transform(self, tensor: Tensor) -> Tensor:
        return tensor / 2


def make_env() -> TransformedEnv:
    """Return an env with a chain."""
    return TransformedEnv(GymEnv("Pendulum-v1"), Compose(StepCounter(200), HalfReward()))


def main() -> None:
    """Use each part of the API once."""
    env = make_env()
    assert_type(env.base_env, EnvBase)
    spec = Bounded(-1.0, 1.0, shape=(3,))
    assert_type(spec.rand(), Tensor)
    report = tdx.check_pipeline(Pipeline.of("Pendulum-v1", "RewardSum"))
    assert_type(report, CheckReport)
    assert_type(report.ok, bool)
    print(CatFrames(4, dim=-1), env.rollout(3))


if __name__ == "__main__":
    main()

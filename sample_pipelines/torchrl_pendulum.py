"""A Pendulum of TorchRL with five transforms, for ``tdx inspect`` and the other commands."""

from __future__ import annotations

from torchrl.envs import (
    CatFrames,
    Compose,
    GymEnv,
    ObservationNorm,
    RewardScaling,
    RewardSum,
    StepCounter,
    TransformedEnv,
)


def make() -> TransformedEnv:
    """Return the env with which a policy is trained."""
    chain = Compose(
        StepCounter(max_steps=200),
        ObservationNorm(loc=0.0, scale=0.5, in_keys=["observation"]),
        CatFrames(N=4, dim=-1, in_keys=["observation"]),
        RewardScaling(loc=0.0, scale=0.1),
        RewardSum(),
    )
    return TransformedEnv(GymEnv("Pendulum-v1"), chain)

"""Envs of TorchRL on the simulated device."""

from __future__ import annotations

import torch
from torchrl.envs import GymEnv, StepCounter, TransformedEnv

from tdx import EnvBase, from_torchrl
from tdx.stacks.device_calls import count_device_calls


def test_transforms_of_torchrl_move_with_their_env_after_specs_were_read() -> None:
    def build() -> EnvBase:
        env = from_torchrl(TransformedEnv(GymEnv("Pendulum-v1"), StepCounter(20)))
        assert env.output_spec.device == torch.device("cpu")
        return env

    calls = count_device_calls(build, steps=3)
    assert calls.error is None
    assert [part.label for part in calls.parts if part.stage is not None] == ["0 StepCounter"]

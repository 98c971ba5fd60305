"""Stages and functions for tests of chains, and stages to draw random chains from."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from tensordict import TensorDictBase
from torch import nn

from tdx import (
    ActionScaling,
    Bounded,
    Categorical,
    CatFrames,
    Compose,
    Composite,
    DoubleToFloat,
    InitTracker,
    ObservationNorm,
    RenameTransform,
    RewardClipping,
    RewardScaling,
    RewardSum,
    StepCounter,
    TensorDictPrimer,
    TensorSpec,
    Transform,
    TransformedEnv,
    Unbounded,
)


class WritesDelta(Transform):
    """Stage with its own ``_step``, which reads the input of the step."""

    def __init__(self) -> None:
        super().__init__(in_keys=["observation"], out_keys=["delta"])

    def _step(self, tensordict: TensorDictBase, next_tensordict: TensorDictBase) -> TensorDictBase:
        seen = next_tensordict["observation"]
        before = tensordict.get("delta", None)
        return next_tensordict.set("delta", seen.clone() if before is None else seen - before)

    def _reset(
        self, tensordict: TensorDictBase | None, tensordict_reset: TensorDictBase
    ) -> TensorDictBase:
        return tensordict_reset.set("delta", tensordict_reset["observation"].clone())

    def transform_observation_spec(self, observation_spec: Composite) -> Composite:
        result = observation_spec.clone()
        result["delta"] = result["observation"].clone()
        return result


def names(env: TransformedEnv) -> list[str]:
    return [type(stage).__name__ for stage in env.stages]


def add_square(tensordict: TensorDictBase) -> TensorDictBase:
    return tensordict.set("square", tensordict["observation"] ** 2)


class Adds(Transform):
    """Stage that adds a parameter to the reward."""

    def __init__(self, number: float) -> None:
        super().__init__(in_keys=["reward"])
        self.number = nn.Parameter(torch.tensor(number), requires_grad=False)

    def _apply_transform(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor + self.number


def zero_action(tensordict: TensorDictBase) -> TensorDictBase:
    return tensordict.set("action", torch.zeros(*tensordict.batch_size, 2))


class Shift(Transform):
    """Stage that adds 1 to each in-key and subtracts 1 in the inverse."""

    def _apply_transform(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor + 1

    def _inv_apply_transform(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor - 1

    def _transform_spec(self, spec: Any) -> TensorSpec:
        return spec.replace(low=spec.low + 1, high=spec.high + 1)

    _inv_transform_spec = _transform_spec


class Double(Transform):
    def _apply_transform(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor * 2

    def _inv_apply_transform(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor / 2


STAGES: dict[str, Callable[[], Any]] = {
    "action_scaling": ActionScaling,
    "cat_frames": lambda: CatFrames(2, -1, in_keys=["observation"]),
    "cat_frames_to_new_key": lambda: CatFrames(3, -1, ["observation"], ["stack"], "constant", 7.0),
    "cat_frames_nested": lambda: CatFrames(2, -1, ["observation"], [("a", "stack")]),
    "clip": lambda: RewardClipping(-1.0, 0.5),
    "compose": lambda: Compose(RewardScaling(0.1, 0.2), RewardSum(out_keys=["inner_sum"])),
    "delta": WritesDelta,
    "double_to_float": DoubleToFloat,
    "doubles": lambda: Double(["observation", "reward"], ["twice", "twice_reward"]),
    "function": lambda: add_square,
    "init": InitTracker,
    "norm": lambda: ObservationNorm(0.3, 2.0),
    "norm_nested": lambda: ObservationNorm(0.3, 2.0, out_keys=[("normal", "observation")]),
    "primer": lambda: TensorDictPrimer(hidden=Unbounded((2,)), default_value=1.5),
    "rename": lambda: RenameTransform(["observation"], ["seen"], create_copy=True),
    "rename_action": lambda: RenameTransform([], [], ["action"], ["push"]),
    "rename_sum": lambda: RenameTransform(["episode_reward"], ["renamed_sum"]),
    "scale": lambda: RewardScaling(0.5, 3.0),
    "scale_to_new_key": lambda: RewardScaling(0.5, 3.0, ["reward"], ["scaled"]),
    "step_counter": lambda: StepCounter(5),
    "sum": RewardSum,
}

DISHONEST = {"delta", "doubles", "function"}
"""Stages whose specs do not describe all that they write."""

HONEST: dict[str, Callable[[], Any]] = {
    **{name: stage for name, stage in STAGES.items() if name not in DISHONEST},
    "cat_frames_far": lambda: CatFrames(3, -1, ["observation"], ["far"], "constant", 50.0),
    "clip_above": lambda: RewardClipping(None, 0.0),
    "count_only": lambda: StepCounter(3, update_done=False, step_count_key="n"),
    "limit": lambda: StepCounter(3, truncated_key="limit", step_count_key="m"),
    "norm_actions": lambda: ObservationNorm(0.1, 2.0, in_keys=[], in_keys_inv=["action"]),
    "norm_negative": lambda: ObservationNorm(0.3, -2.0),
    "norm_standard": lambda: ObservationNorm(0.3, 2.0, standard_normal=True),
    "primer_before": lambda: TensorDictPrimer(
        before=Bounded(1.0, 2.0, (2,)), call_before_env_reset=True
    ),
    "primer_random": lambda: TensorDictPrimer({("p", "drawn"): Categorical(5)}, random=True),
    "rename_done": lambda: RenameTransform(["done"], ["over"]),
    "rename_nested": lambda: RenameTransform(["observation"], [("x", "observation")]),
    "rename_reward": lambda: RenameTransform(["reward"], ["gain"]),
    "rename_truncated": lambda: RenameTransform(["truncated"], ["cut"]),
    "scale_negative": lambda: RewardScaling(1.0, -2.0),
}

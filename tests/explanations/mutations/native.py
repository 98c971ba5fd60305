"""Chains of the transforms of tdx, or of those of TorchRL, which have the same names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import torch
from tensordict import TensorDictBase

import tdx
from tests.explanations.mutations.edits import GRAY_601, Layout
from tests.explanations.mutations.envs import key_of, make_env
from tests.explanations.mutations.model import Chain, Operation, Stage

LAYOUT = Layout(
    library="tdx",
    channels_first=True,
    new_axis=False,
    padding="same",
    kernel="bilinear",
    gray=GRAY_601,
    offset=0,
    renames=True,
)


def builder(transforms: Any, specs: Any) -> Callable[[Chain], object]:
    """Return the function that builds an env with a chain.

    Args:
        transforms: Module of the transforms and of the wrapper of an env.
        specs: Module of the specs.
    """

    class Custom(transforms.Transform):  # type: ignore[misc]
        """A transform of a user, which may have state.

        Args:
            stage: What it does.
            key: The entry.
        """

        def __init__(self, stage: Stage, key: str) -> None:
            super().__init__([key], [key])
            self.key = key
            self.operation = Operation(stage)

        def _call(self, next_tensordict: TensorDictBase) -> TensorDictBase:
            return self._write(next_tensordict, first=False)

        def _reset(
            self, tensordict: TensorDictBase | None, tensordict_reset: TensorDictBase
        ) -> TensorDictBase:
            return self._write(tensordict_reset, first=True)

        def _write(self, entries: TensorDictBase, *, first: bool) -> TensorDictBase:
            value = self.operation(entries[self.key].numpy(), first)
            entries[self.key] = torch.from_numpy(np.ascontiguousarray(value))
            return entries

        def transform_observation_spec(self, observation_spec: Any) -> Any:
            zero = observation_spec[self.key].zero().numpy()
            value = torch.from_numpy(
                np.ascontiguousarray(Operation(self.operation.stage)(zero, True))
            )
            observation_spec[self.key] = specs.Unbounded(value.shape, dtype=value.dtype)
            return observation_spec

    def make_transform(stage: Stage, key: str) -> object:
        """Return the library's own transform for a stage, or a custom one if it has none."""
        arguments: Any = stage.arguments
        keys = [key]
        match stage.operation:
            case "normalize":
                mean, std = (
                    torch.as_tensor(np.asarray(arguments[name], np.float32))
                    for name in ("mean", "std")
                )
                scale = std + arguments["epsilon"]
                return transforms.ObservationNorm(mean, scale, in_keys=keys, standard_normal=True)
            case "scale":
                return transforms.ObservationNorm(
                    arguments["offset"], arguments["factor"], in_keys=keys
                )
            case "clip":
                return transforms.ClipTransform(
                    in_keys=keys, low=arguments["low"], high=arguments["high"]
                )
            case "history" if not {"order", "start", "spacing"} & set(arguments):
                padding: Literal["same", "constant"] = "same"
                if arguments["padding"] != "same":
                    padding = "constant"
                length, axis = arguments["length"], arguments["axis"]
                return transforms.CatFrames(length, axis, in_keys=keys, padding=padding)
            case "to_float" if arguments["high"] == 1 and arguments["low"] == 0:
                return transforms.ToTensorImage(in_keys=keys)
            case "crop":
                height, width, top, left = (
                    arguments[n] for n in ("height", "width", "top", "left")
                )
                return transforms.Crop(height, width, top, left, in_keys=keys)
            case "resize" if arguments["antialias"]:
                size = arguments["height"], arguments["width"]
                return transforms.Resize(*size, interpolation=arguments["kernel"], in_keys=keys)
            case "gray" if arguments["weights"] == GRAY_601:
                return transforms.GrayScale(in_keys=keys)
            case "rename":
                return transforms.RenameTransform(keys, [arguments["key"]])
        return Custom(stage, key)

    if transforms is tdx:
        Custom.time_behavior = tdx.TimeBehavior.CONTROL

    def build(chain: Chain) -> object:
        env, key = transforms.GymWrapper(make_env(chain.base)), key_of(chain.base)
        stages = [make_transform(stage, key) for stage in chain.stages]
        return transforms.TransformedEnv(env, transforms.Compose(*stages))

    return build


build = builder(tdx, tdx)

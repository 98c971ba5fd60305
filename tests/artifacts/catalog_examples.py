"""Each transform of the catalog in a chain of a small env, to try its export."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModule

import tdx
from tdx.core.envs import EnvBase
from tdx.core.transforms import Transform
from tdx.specs import Bounded, Categorical, Composite, Unbounded
from tests.transforms.envs import CATEGORIES, OneHotRowsEnv, RowsEnv

VECTOR, IMAGE, PIXELS = ["observation"], ["image"], ["pixels"]


class MaskedEnv(RowsEnv):
    """Has a discrete action, and a mask of the allowed ones."""

    def __init__(self) -> None:
        super().__init__()
        self.action_spec = Categorical(4, shape=())
        self.observation_spec = Composite(action_mask=Categorical(2, shape=(4,), dtype=torch.bool))


class ObjectivesEnv(RowsEnv):
    """Has a reward with two elements."""

    def __init__(self) -> None:
        super().__init__()
        self.reward_spec = Bounded(-1.0, 1.0, shape=(2,))


def _stops(entries: TensorDictBase) -> torch.Tensor:
    stops: torch.Tensor = entries["observation"][..., 0] > 1
    return stops


CHAINS: Mapping[str, Callable[[], list[Transform]]] = {
    "ActionChunkTransform": lambda: [tdx.ActionChunkTransform(2)],
    "ActionDiscretizer": lambda: [tdx.ActionDiscretizer(4)],
    "ActionMask": lambda: [tdx.ActionMask()],
    "ActionScaling": lambda: [tdx.ActionScaling()],
    "DiscreteActionProjection": lambda: [tdx.DiscreteActionProjection(CATEGORIES, 6)],
    "FlattenAction": lambda: [
        tdx.UnsqueezeTransform(-2, in_keys_inv=["action"]),
        tdx.FlattenAction(-2, -1),
    ],
    "DTypeCastTransform": lambda: [tdx.DTypeCastTransform(torch.float64, torch.float32)],
    "DeviceCastTransform": lambda: [tdx.DeviceCastTransform("cpu")],
    "DoubleToFloat": lambda: [tdx.DoubleToFloat()],
    "PinMemoryTransform": lambda: [tdx.PinMemoryTransform()],
    "R3MTransform": lambda: [tdx.R3MTransform("resnet18", in_keys=PIXELS, size=32)],
    "ExpandAs": lambda: [tdx.ExpandAs("reward", "observation", "rewards")],
    "InitTracker": lambda: [tdx.InitTracker()],
    "StepCounter": lambda: [tdx.StepCounter(5)],
    "TensorDictPrimer": lambda: [tdx.TensorDictPrimer(hidden=Unbounded(2), default_value=0.5)],
    "TerminateTransform": lambda: [tdx.TerminateTransform(_stops)],
    "TrajCounter": lambda: [tdx.TrajCounter()],
    "CenterCrop": lambda: [tdx.CenterCrop(4, in_keys=IMAGE)],
    "Crop": lambda: [tdx.Crop(4, 3, in_keys=IMAGE)],
    "GrayScale": lambda: [tdx.GrayScale(in_keys=IMAGE)],
    "Resize": lambda: [tdx.Resize(4, 5, in_keys=IMAGE)],
    "ToTensorImage": lambda: [tdx.ToTensorImage(in_keys=PIXELS)],
    "gSDENoise": lambda: [tdx.gSDENoise()],
    "RemoveEmptySpecs": lambda: [tdx.RemoveEmptySpecs()],
    "Stack": lambda: [tdx.Stack(VECTOR, "stacked")],
    "ExcludeTransform": lambda: [tdx.ExcludeTransform("pixels", "image")],
    "RenameTransform": lambda: [tdx.RenameTransform(VECTOR, ["state"])],
    "SelectTransform": lambda: [tdx.SelectTransform("observation")],
    "CatFrames": lambda: [tdx.CatFrames(3, dim=-1, in_keys=VECTOR)],
    "CatTensors": lambda: [tdx.CatTensors(["observation", "precise"], out_key="both")],
    "ClipTransform": lambda: [tdx.ClipTransform(VECTOR, low=-1.0, high=1.0)],
    "FlattenObservation": lambda: [tdx.FlattenObservation(-3, -1, in_keys=IMAGE)],
    "ModuleTransform": lambda: [
        tdx.ModuleTransform(
            module=TensorDictModule(torch.nn.Linear(3, 2), ["observation"], ["features"])
        )
    ],
    "NextObservationDelta": lambda: [tdx.NextObservationDelta()],
    "ObservationNorm": lambda: [tdx.ObservationNorm(0.5, 2.0, in_keys=VECTOR)],
    "PermuteTransform": lambda: [tdx.PermuteTransform((-1, -3, -2), in_keys=PIXELS)],
    "SignTransform": lambda: [tdx.SignTransform(in_keys=["reward"])],
    "SqueezeTransform": lambda: [tdx.SqueezeTransform(-1, in_keys=["reward"])],
    "TimeMaxPool": lambda: [tdx.TimeMaxPool(VECTOR, T=3)],
    "UnaryTransform": lambda: [tdx.UnaryTransform(VECTOR, ["size"], fn=torch.abs)],
    "UnsqueezeTransform": lambda: [tdx.UnsqueezeTransform(-1, in_keys=VECTOR)],
    "VecNorm": lambda: [tdx.VecNorm(in_keys=VECTOR)],
    "VecNormV2": lambda: [tdx.VecNormV2(in_keys=VECTOR)],
    "BinarizeReward": lambda: [tdx.BinarizeReward()],
    "LineariseRewards": lambda: [tdx.LineariseRewards(["reward"], weights=[1.0, 0.5])],
    "RewardClipping": lambda: [tdx.RewardClipping(-1.0, 1.0)],
    "RewardScaling": lambda: [tdx.RewardScaling(0.0, 0.1)],
    "RewardSum": lambda: [tdx.RewardSum()],
    "SuccessReward": lambda: [tdx.SuccessReward("done")],
    "TargetReturn": lambda: [tdx.TargetReturn(10.0)],
}
"""Stages by the name of the last one, for each transform that can be exported."""
_ENVS: Mapping[str, Callable[[], EnvBase]] = {
    "ActionMask": MaskedEnv,
    "DiscreteActionProjection": OneHotRowsEnv,
    "LineariseRewards": ObjectivesEnv,
}


def example_env(name: str) -> tdx.TransformedEnv:
    """Return an env whose chain ends with a transform."""
    env = _ENVS.get(name, RowsEnv)()
    chain = tdx.TransformedEnv(env, tdx.Compose(*CHAINS[name]()))
    if name.startswith("VecNorm"):
        chain.rollout(3)  # without statistics, it changes no values
    return chain

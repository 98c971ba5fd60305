"""Transforms of TorchRL as stages of a chain of tdx."""

from __future__ import annotations

from typing import Any, Self

import torch
from tensordict import TensorDictBase
from torchrl import envs as rl

from tdx.core.transforms.chain_member import ChainMember
from tdx.foundation.errors import ArgumentError
from tdx.specs import Composite
from tdx.stacks.torchrl.chain import (
    ChainState,
    TorchRLStage,
    flatten_transforms,
    stage_class,
)
from tdx.stacks.torchrl.env import TdxEnv
from tdx.transforms import Compose, Transform


class AdoptedStage(TorchRLStage):
    """A transform of TorchRL that belongs to a chain of tdx; it runs the original.

    The original is in a ``TransformedEnv`` of TorchRL around the env before this stage, from
    which it reads keys, and which it may step.
    """

    def __init__(self, original: Any) -> None:
        super().__init__(original, None, 0)

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the original, such as ``init_stats``, which may need its env."""
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name.startswith("_"):
                raise
            if self._chain is None:
                self._enter_env()
            return getattr(self._modules["original"], name)

    def _bind(self, input_spec: Composite, output_spec: Composite) -> None:
        self._enter_env()

    def _enter_env(self) -> None:
        env = self.parent
        if env is None:
            return
        self.original.reset_parent()
        # Not a submodule, as the envs of a chain: it would end up in the state dict.
        self.__dict__["_chain"] = ChainState(
            rl.TransformedEnv(TdxEnv(env), self.original, auto_unwrap=False), 1, is_outermost=False
        )

    def _reset_env_preprocess(self, tensordict: TensorDictBase) -> TensorDictBase:
        # The stages of tdx before this one need the whole input, not only masks.
        result = self.original._reset_env_preprocess(tensordict)
        result = tensordict if result is None else result
        self._chain.reset_input = self._chain.reduce(result)
        return result

    def train(self, mode: bool = True) -> Self:
        """Set the mode of the original, which has no env of its own."""
        return Transform.train(self, mode)

    def follow_env_device(self, device: torch.device | None) -> None:
        """Move the original to the device of the env before it."""
        ChainMember.follow_env_device(self, device)

    def clone(self) -> Self:
        """Return a copy for another chain, with a clone of the original."""
        copied = super().clone()
        copied._modules["original"] = self.original.clone()
        copied.__dict__["_chain"] = None
        return copied

    def __getstate__(self) -> dict[str, object]:
        # The env around the original is made again in the other process.
        return {**super().__getstate__(), "_chain": None}


def adopt_transform(transform: Any) -> Transform:
    """Convert a transform; see :func:`tdx.from_torchrl_transform`."""
    if not isinstance(transform, rl.Transform):
        raise ArgumentError(
            f"from_torchrl_transform takes a transform of TorchRL, got {type(transform).__name__}",
            hint="pass an instance, such as torchrl.envs.RewardSum()",
        )
    if transform.container is not None:
        raise ArgumentError(
            f"this instance of {type(transform).__name__} is already part of a chain of TorchRL",
            hint="pass transform.clone(), or convert the env with its chain: tdx.from_torchrl(env)",
        )
    if type(transform) is rl.Compose:
        return Compose(*(_adopt(stage.clone()) for stage in flatten_transforms(transform)))
    return _adopt(transform)


def _adopt(original: object) -> AdoptedStage:
    kind: object = type(original)
    stage: AdoptedStage = stage_class(kind, AdoptedStage)(original)
    return stage

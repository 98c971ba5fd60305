"""The stack of a TorchRL env: its transforms run as the stages of a chain of tdx."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tdx.core.chain import chain_stages
from tdx.stacks.native import NativeStack
from tdx.stacks.sources import class_location, constructor_arguments
from tdx.stacks.stack import StageInfo
from tdx.stacks.torchrl import from_torchrl


class TorchRLStack(NativeStack):
    """A TorchRL env with its transforms.

    Args:
        env: A ``torchrl.envs.EnvBase``; see :func:`~tdx.from_torchrl`.

    Example:
        >>> from tdx import PendulumEnv, to_torchrl
        >>> from torchrl.envs import StepCounter
        >>> stack = TorchRLStack(to_torchrl(PendulumEnv()).append_transform(StepCounter(10)))
        >>> [(stage.name, stage.arguments["max_steps"]) for stage in stack.stages]
        [('StepCounter', 10)]
    """

    kind = "torchrl"

    def __init__(self, env: Any) -> None:
        super().__init__(from_torchrl(env))

    @property
    def stages(self) -> Sequence[StageInfo]:
        """See :class:`~tdx.stacks.Stack`; location and arguments are those of the originals."""
        originals = [getattr(each, "original", each) for each in chain_stages(self.target)]
        return tuple(
            replace(
                stage,
                location=class_location(type(original)),
                arguments=constructor_arguments(original, None),
            )
            for stage, original in zip(super().stages, originals, strict=True)
        )

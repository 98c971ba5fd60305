"""The stack of a TorchRL env: its transforms run as the stages of a chain of tdx."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tensordict import is_tensor_collection
from torch import Tensor
from torch.nn.parameter import is_lazy

from tdx.core.chain import chain_stages
from tdx.errors import EnvError, Where
from tdx.keys import format_key
from tdx.stacks.native import NativeStack, stage_arguments
from tdx.stacks.sources import attributes_of, class_location
from tdx.stacks.stack import StageInfo
from tdx.stacks.torchrl import from_torchrl

if TYPE_CHECKING:
    from torch import Tensor

    from tdx.envs import EnvBase
    from tdx.stacks.conversion import ConvertedStack
    from tdx.stacks.replay import BaseCalls
    from tdx.stacks.torchrl.converted import TorchRLReference


class TorchRLStack(NativeStack):
    """A TorchRL env with its transforms.

    Args:
        env: A ``torchrl.envs.EnvBase``; see :func:`~tdx.from_torchrl`.

    Raises:
        EnvError: It is a closed env of Gymnasium.

    Example:
        >>> from tdx import PendulumEnv, to_torchrl
        >>> from torchrl.envs import StepCounter
        >>> stack = TorchRLStack(to_torchrl(PendulumEnv()).append_transform(StepCounter(10)))
        >>> [(stage.name, stage.arguments["max_steps"]) for stage in stack.stages]
        [('StepCounter', 10)]
    """

    kind = "torchrl"

    def __init__(self, env: Any) -> None:
        converted = from_torchrl(env)
        _check_open(env)
        super().__init__(converted)

    @property
    def stages(self) -> Sequence[StageInfo]:
        """See :class:`~tdx.stacks.Stack`; location and arguments are those of the originals."""
        originals = self._originals()
        return tuple(
            replace(
                stage,
                location=class_location(type(original)),
                arguments=stage_arguments(original),
                text=None,
            )
            for stage, original in zip(super().stages, originals, strict=True)
        )

    @property
    def calls(self) -> Sequence[str]:
        """See :class:`~tdx.stacks.Stack`; arguments are those of the originals."""
        return tuple(stage.call for stage in self.stages)

    def convert(self) -> ConvertedStack:
        """See :class:`~tdx.stacks.conversion.Convertible`."""
        from tdx.stacks.torchrl.converted import convert_chain

        return convert_chain(self.target.original, self.stages)

    def reference(self, last: int, key: str | None, seed: int) -> TorchRLReference:
        """See :class:`~tdx.stacks.conversion.Convertible`."""
        from tdx.stacks.torchrl.converted import TorchRLReference, cut_chain

        return TorchRLReference(cut_chain(self.target.original, last + 1), seed)

    def base_env(self, last: int, key: str | None) -> EnvBase:
        """See :class:`~tdx.stacks.conversion.Convertible`."""
        from tdx.stacks.torchrl.converted import base_env

        return base_env(self.target.original, last + 1)

    @property
    def has_pipeline_rules(self) -> bool:
        """See :class:`~tdx.stacks.Stack`."""
        return False

    def replaced_env(self, calls: BaseCalls) -> AbstractContextManager[None]:
        """See :class:`~tdx.stacks.Stack`; of the original env, which frame skips step."""
        from tdx.core.chain import flatten_chain
        from tdx.stacks.replay import replaced_env

        return replaced_env(flatten_chain(self.target)[0].original, calls, hooks="_")

    def state_owners(self) -> Sequence[Any]:
        """See :class:`~tdx.stacks.Stack`; the transforms of TorchRL."""
        return self._originals()

    def load_state(self, state: Mapping[int, Mapping[str, Tensor]]) -> Sequence[str]:
        """See :class:`~tdx.stacks.Stack`."""
        from tdx.stacks.replay import write_tensor

        originals = self._originals()
        return [
            f"{index}.{name}"
            for index, values in state.items()
            for name, value in values.items()
            if index >= len(originals) or not write_tensor(originals[index], name, value)
        ]

    def state(self) -> Mapping[int, Mapping[str, Tensor]]:
        """See :class:`~tdx.stacks.Stack`; the buffers and the running statistics."""
        states = {index: dict(_state(each)) for index, each in enumerate(self._originals())}
        return {index: state for index, state in states.items() if state}

    def _originals(self) -> list[Any]:
        return [getattr(each, "original", each) for each in chain_stages(self.target)]


def _check_open(env: Any) -> None:
    from torchrl.envs import GymWrapper

    from tdx.stacks.torchrl.chain import list_transforms

    base, _ = list_transforms(env)
    # Other envs of TorchRL count as closed before their first reset.
    if isinstance(base, GymWrapper) and base.is_closed:
        raise EnvError(
            "the env is closed",
            hint="create a new one",
            where=Where(env=type(base).__name__),
        )


def _state(transform: Any) -> Iterator[tuple[str, Tensor]]:
    for name, value in transform.named_buffers(recurse=False):
        if not is_lazy(value):
            yield name, value.detach().clone()
    for name, value in attributes_of(transform).items():
        if is_tensor_collection(value):
            for key, leaf in value.items(True, True):
                yield f"{name}.{format_key(key)}", leaf.detach().clone()
        elif isinstance(value, Tensor):
            yield name, value.detach().clone()

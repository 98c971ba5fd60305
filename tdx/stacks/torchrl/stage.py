"""Transforms of TorchRL as stages of a chain of tdx."""

from __future__ import annotations

from functools import cache
from typing import Any, Self

import torch
from tensordict import TensorDictBase
from torchrl.envs import transforms as rl

from tdx.keys import NestedKey, normalize_key
from tdx.specs import Composite
from tdx.stacks.torchrl.specs import convert_from_torchrl, convert_to_torchrl
from tdx.transforms import Transform


class ChainState:
    """What the stages of one ``TransformedEnv`` of TorchRL share.

    TorchRL gives its transforms the input of a reset that their inverses have mapped, reduced to
    masks and state. The last stage reduces it and the first one stores it, since inverses run
    backwards.

    Args:
        source: The ``TransformedEnv``. Its transforms refer to it weakly.
        count: Number of its transforms.
        is_outermost: True if rewards get the shape of their spec after this chain.
    """

    def __init__(self, source: Any, count: int, is_outermost: bool) -> None:
        self.source = source
        self.last = count - 1
        self.is_outermost = is_outermost
        self.reset_input: TensorDictBase | None = None

    def reduce(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Select the masks, or else the state, of an input ``[*B]``."""
        source = self.source
        masks = tensordict.select(*source.reset_keys, strict=False)
        if not masks.is_empty():
            return masks
        return tensordict.select(*source.state_spec.keys(True, True), strict=False)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "reset_input": None}


class TorchRLStage(Transform):
    """A transform of TorchRL in a chain of tdx; it runs the original.

    Args:
        original: The transform.
        chain: Shared by the stages of one chain.
        position: Index in that chain.
    """

    _steps_env = True
    _needs_declared_input = True
    original: Any

    def __init__(self, original: Any, chain: ChainState, position: int) -> None:
        super().__init__()
        self._chain = chain
        self._position = position
        self.original = original

    # Keys: they may change until the specs are known, and their numbers may differ.

    @property  # type: ignore[misc]
    def in_keys(self) -> list[NestedKey]:
        """Entries of the env's output to read."""
        return _keys(self.original, "in_keys")

    @property  # type: ignore[misc]
    def out_keys(self) -> list[NestedKey]:
        """Keys to write."""
        return _keys(self.original, "out_keys")

    @property  # type: ignore[misc]
    def in_keys_inv(self) -> list[NestedKey]:
        """Entries of the env's input to write."""
        return _keys(self.original, "in_keys_inv")

    @property  # type: ignore[misc]
    def out_keys_inv(self) -> list[NestedKey]:
        """Keys that the policy writes."""
        return _keys(self.original, "out_keys_inv")

    @property
    def invertible(self) -> bool:
        """True if the original changes the env's input."""
        own = type(self.original)
        return bool(self.in_keys_inv) or own._inv_call is not rl.Transform._inv_call

    # Values

    def _call(self, next_tensordict: TensorDictBase) -> TensorDictBase:
        return self.original._call(next_tensordict)

    def _step(self, tensordict: TensorDictBase, next_tensordict: TensorDictBase) -> TensorDictBase:
        result = self.original._step(tensordict, next_tensordict)
        chain = self._chain
        if chain.is_outermost and self._position == chain.last:
            return chain.source._step_proc_data(result)
        return result

    def _reset(
        self, tensordict: TensorDictBase | None, tensordict_reset: TensorDictBase
    ) -> TensorDictBase:
        given = self._chain.reset_input
        if given is None or given.is_empty():
            given = tensordict_reset.empty()
        return self.original._reset(given, tensordict_reset)

    def _inv_call(self, tensordict: TensorDictBase) -> TensorDictBase:
        return self.original._inv_call(tensordict)

    def _reset_env_preprocess(self, tensordict: TensorDictBase) -> TensorDictBase:
        chain = self._chain
        if self._position == chain.last:
            tensordict = chain.reduce(tensordict)
        result = self.original._reset_env_preprocess(None if tensordict.is_empty() else tensordict)
        if result is None:
            result = tensordict
        if self._position == 0:
            chain.reset_input = result
        return result

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Map stored data with the original."""
        return self.original.forward(tensordict)

    def init(self, tensordict: TensorDictBase) -> None:
        self.original.init(tensordict)

    # Specs, batch size and device

    def transform_output_spec(self, output_spec: Composite) -> Composite:
        """Return the output spec after the original."""
        spec = convert_to_torchrl(output_spec.clone().unlock_())
        return _unlocked(self.original.transform_output_spec(spec))

    def transform_input_spec(self, input_spec: Composite) -> Composite:
        """Return the input spec that the policy sees."""
        spec = convert_to_torchrl(input_spec.clone().unlock_())
        return _unlocked(self.original.transform_input_spec(spec))

    def transform_env_batch_size(self, batch_size: torch.Size) -> torch.Size:
        return torch.Size(self.original.transform_env_batch_size(batch_size))

    def transform_env_device(self, device: torch.device) -> torch.device:
        return torch.device(self.original.transform_env_device(device) or device)

    # The original belongs to its own env.

    def train(self, mode: bool = True) -> Self:
        """Leave the mode of the original unchanged."""
        return self

    def _follow_device(self, device: torch.device) -> None:
        """Leave the original on its device."""

    def close(self) -> None:
        self.original.close()

    def __reduce__(self) -> Any:
        return _new_stage, (type(self.original),), self.__getstate__()

    def __repr__(self) -> str:
        return str(self.original)


def create_stage(original: Any, chain: ChainState, position: int) -> TorchRLStage:
    """Return a stage for a transform; its class has the name of the transform's class."""
    kind: Any = type(original)
    return _stage_class(kind)(original, chain, position)


@cache
def _stage_class(kind: Any) -> type[TorchRLStage]:
    class Stage(TorchRLStage):
        __doc__ = kind.__doc__

    Stage.__name__ = Stage.__qualname__ = kind.__name__
    return Stage


def _new_stage(kind: Any) -> TorchRLStage:
    created = _stage_class(kind)
    return created.__new__(created)


def _keys(original: Any, name: str) -> list[NestedKey]:
    found = getattr(original, name, None)
    return [] if found is None else [normalize_key(key) for key in found]


def _unlocked(spec: Any) -> Composite:
    converted: Composite = convert_from_torchrl(spec)
    return converted.unlock_() if converted.is_locked else converted

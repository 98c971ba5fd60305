"""Reward an episode for its success."""

from __future__ import annotations

from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor

from tdx.core.transforms import TimeBehavior, Transform
from tdx.core.transforms.kernels import Chunk, ChunkKernel
from tdx.core.transforms.spec_maps import missing_key_error, output_keys, with_entries
from tdx.core.transforms.validation import check_finite
from tdx.foundation.errors import ArgumentError, SpecError, Where
from tdx.foundation.keys import NestedKey
from tdx.specs import Bounded, Composite, TensorSpec


class SuccessReward(Transform):
    """Replace the reward by ``scale`` in steps that report success, and by 0 in others.

    For tasks that report their completion in an entry of its own, as many robot benchmarks do. A
    reset writes no reward.

    Args:
        success_key: Entry that reports success: bool, or numbers of which nonzero is a success.
        reward_key: Reward to write, in the shape of the report and the default dtype.
        scale: Reward of a success.

    Raises:
        ArgumentError: ``scale`` is not a finite number.
        KeyNotFoundError: The env has no such entry (when its specs are computed), or it is missing
            in the data.

    Example:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> from tdx import SuccessReward
        >>> SuccessReward(scale=2.0)(TensorDict(success=torch.tensor([True])))["reward"]
        tensor([2.])
    """

    _is_verified = True

    time_behavior = TimeBehavior.POINTWISE

    def __init__(
        self,
        success_key: NestedKey = "success",
        reward_key: NestedKey = "reward",
        *,
        scale: float = 1.0,
    ) -> None:
        super().__init__([success_key], [reward_key])
        given = check_finite(scale, "scale")
        if given.numel() != 1:
            raise ArgumentError(f"scale must be a number, got {scale!r}", hint="for example 1.0")
        self.scale = given.item()
        # Spec of the report, which may be an observation or a done flag.
        self._success: TensorSpec | None = None

    def _apply_transform(self, tensor: Tensor) -> Tensor:
        return (tensor != 0).to(torch.get_default_dtype()) * self.scale

    def _reset(
        self, tensordict: TensorDictBase | None, tensordict_reset: TensorDictBase
    ) -> TensorDictBase:
        return tensordict_reset

    def make_chunk_kernel(self) -> ChunkKernel | None:
        # Without the resets, which have no reward.
        def run(chunk: Chunk) -> None:
            self._map_entries(chunk.steps)

        return ChunkKernel(run, tuple(self.in_keys), tuple(self.out_keys))

    # Specs

    def _bind(self, input_spec: Composite, output_spec: Composite) -> None:
        (key,) = self.in_keys
        specs = [part.get(key, None) for part in output_spec.values()]
        self._success = next((spec for spec in specs if spec is not None), None)
        if self._success is None:
            raise missing_key_error(key, output_keys(output_spec), "the env at this stage")

    def _map_spec(self, spec: Any) -> Any:
        return spec

    def transform_reward_spec(self, reward_spec: Any) -> Any:
        """Return the reward spec with the reward of this transform.

        Raises:
            SpecError: Without an env, the spec has no such reward, whose shape would be kept.
        """
        (key,) = self.out_keys
        is_lone = not isinstance(reward_spec, Composite)
        known = reward_spec if is_lone else reward_spec.get(key, None)
        like = known if self._success is None else self._success
        if like is None:
            raise SpecError(
                "the shape of the reward is not known without an env",
                hint="pass a spec that has this reward",
                where=Where(key=key),
            )
        low, high = sorted((0.0, self.scale))
        dtype = torch.get_default_dtype()
        written = Bounded(low, high, shape=like.shape, device=like.device, dtype=dtype)
        return written if is_lone else with_entries(reward_spec, {key: written})

    def __repr__(self) -> str:
        return f"SuccessReward({self.in_keys[0]!r}, {self.out_keys[0]!r}, scale={self.scale})"

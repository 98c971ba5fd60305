"""Repeat an action for several steps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from tensordict import TensorDictBase
from torch import Tensor

from tdx.core.chain import flatten_stages
from tdx.core.envs.done_flags import expand_mask, keep_unmasked_rows
from tdx.core.envs.step_mdp import advance
from tdx.core.transforms import TimeBehavior, Transform
from tdx.core.transforms.inner_steps import end_keys, require_upstream, running_rows
from tdx.core.transforms.spec_maps import sum_dtype, sum_spec, unlocked_copy
from tdx.core.transforms.validation import check_integer
from tdx.foundation.errors import ChainError, StoredDataError, Where
from tdx.foundation.keys import NestedKey, unique_keys
from tdx.foundation.tensordicts import read, write
from tdx.specs import Composite, StackedComposite, TensorSpec

if TYPE_CHECKING:
    from tdx.core.envs import EnvBase


class FrameSkipTransform(Transform):
    """Repeat each action for ``frame_skip`` steps; return the last step with summed rewards.

    The base env is stepped together with the stages before this one, so those see every frame,
    and later stages one in ``frame_skip``. Integer and bool rewards are summed in int64,
    float16 and bfloat16 rewards in float32. The repetition stops when the episode is done: in a
    batch, rows that are done are not stepped while the others continue.

    Args:
        frame_skip: Number of steps.

    Raises:
        ArgumentError: ``frame_skip`` is not an integer of at least 1.
        ChainError: The envs of a batch have different specs (when its specs are computed), or
            the transform is not in an env (in a step).

    Example:
        >>> from tdx import FrameSkipTransform, GymEnv, TransformedEnv
        >>> env = TransformedEnv(GymEnv("CartPole-v1"), FrameSkipTransform(4))
        >>> env.rollout(2)["next", "reward"].flatten()
        tensor([4., 4.])
    """

    why_not_exported = "it steps the env"
    _is_verified = True
    steps_env = True

    time_behavior = TimeBehavior.CONTROL

    def __init__(self, frame_skip: int = 1) -> None:
        super().__init__()
        self.frame_skip = check_integer(frame_skip, "frame_skip", 1, "for example frame_skip=4")
        self._reward_keys: list[NestedKey] = []
        self._done_keys: list[NestedKey] = []
        self._stepped_keys: tuple[NestedKey, ...] = ()

    def _bind(self, input_spec: Composite, output_spec: Composite) -> None:
        if any(isinstance(part, StackedComposite) for part in output_spec.values()):
            raise ChainError(
                "FrameSkipTransform cannot step a batch of envs with different specs",
                hint="put it into the envs of the batch",
            )
        self._reward_keys = unique_keys(output_spec["full_reward_spec"].keys(True, True))
        parts = output_spec.values()
        self._stepped_keys = tuple(key for part in parts for key in part.keys(True, True))
        self._done_keys = end_keys(output_spec["full_done_spec"])

    @property
    def written_keys(self) -> tuple[NestedKey, ...]:
        return () if self.frame_skip == 1 else self._stepped_keys

    # Steps

    def _step(self, tensordict: TensorDictBase, next_tensordict: TensorDictBase) -> TensorDictBase:
        if self.frame_skip == 1:
            return next_tensordict
        current, following = tensordict, next_tensordict
        running = running_rows(following, self._done_keys)
        totals = {
            key: (reward := read(following, key)).to(sum_dtype(reward.dtype))
            for key in self._reward_keys
        }
        for _ in range(self.frame_skip - 1):
            count = int(running.sum())
            if count == 0:
                break
            frame = following
            # The input of the next frame: the output of this one, and the same action.
            held = current.exclude("next", "_step").set("next", following)
            current = advance(held, self._reward_keys)
            if count < running.numel():
                current.set("_step", running)
            following = self._next_frame(current, following)
            if count < running.numel():
                keep_unmasked_rows(
                    following, frame, {"_reset": running.unsqueeze(-1)}, running.ndim
                )
            self._add(totals, following, running)
            running = running & running_rows(following, self._done_keys)
        for key, total in totals.items():
            write(following, key, total)
        return following

    def _next_frame(self, current: TensorDictBase, following: TensorDictBase) -> TensorDictBase:
        """Return the output of one more step before this stage.

        The action in ``current`` is one that upstream stages have mapped already.
        """
        env, stages = self._upstream()
        for stage in reversed(stages):
            current = stage.to_inner_batch(current)
        states = env.full_state_spec.keys(True, True)
        if states:
            # Upstream stages must invert the outputs that the env reads as its states.
            given = following.exclude()
            for stage in reversed(stages):
                given = stage.inv_present(given)
            for key in states:
                value = given.get(key, None)
                if value is not None:
                    current.set(key, value)
        result = env.completed_step(current)
        for stage in stages:
            result = stage._step(current, result)
            current = stage.to_outer_batch(current)
        return result

    def _upstream(self) -> tuple[EnvBase, tuple[Transform, ...]]:
        """Return the base env and the upstream stages, without nested chains."""
        env, stages = require_upstream(self)
        return env, flatten_stages(stages)

    @staticmethod
    def _add(totals: dict[NestedKey, Tensor], following: TensorDictBase, running: Tensor) -> None:
        for key, total in totals.items():
            reward = read(following, key)
            rows = expand_mask(running, reward, running.ndim)
            totals[key] = torch.where(rows, total + reward, total)

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Refuse stored data, which has no env to step.

        Raises:
            StoredDataError: ``frame_skip`` is above 1.
        """
        if self.frame_skip == 1:
            return tensordict
        raise StoredDataError(
            "it steps an env, but stored data has none",
            hint="remove it from the chain of the replay buffer: stored steps contain its results",
            where=Where(transform="FrameSkipTransform"),
        )

    # Specs

    def transform_reward_spec(self, reward_spec: Any) -> Any:
        """Return the reward spec with the bounds of a sum of 1 to ``frame_skip`` rewards."""
        if not isinstance(reward_spec, Composite):
            return self._sum_spec(reward_spec)
        result = unlocked_copy(reward_spec)
        for key, spec in reward_spec.items(True, True):
            result[key] = self._sum_spec(spec)
        return result

    def _sum_spec(self, spec: TensorSpec) -> TensorSpec:
        return spec if self.frame_skip == 1 else sum_spec(spec, self.frame_skip)

    def __repr__(self) -> str:
        return f"FrameSkipTransform(frame_skip={self.frame_skip})"

"""Make several steps with one action."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import torch
from tensordict import TensorDictBase
from torch import Tensor

from tdx.core.envs.done_flags import expand_mask, keep_unmasked_rows
from tdx.core.envs.step_mdp import advance
from tdx.core.transforms import Compose, TimeBehaviour, Transform
from tdx.core.transforms.spec_edits import done_groups
from tdx.core.transforms.sums import sum_dtype, sum_spec
from tdx.core.transforms.upstream import upstream
from tdx.errors import ArgumentError, ChainError, Where
from tdx.keys import NestedKey, split_key, unique_keys
from tdx.specs import Composite, StackedComposite, TensorSpec
from tdx.tensordicts import read, write

if TYPE_CHECKING:
    from tdx.core.envs import EnvBase


class FrameSkipTransform(Transform):
    """Repeat each action for ``frame_skip`` steps, and return the last of them with all rewards.

    The env that is stepped is the one inside together with the stages before this one, so those
    see every frame, and those after it one in ``frame_skip``. The rewards of the frames are added
    up: integers and bools in int64, float16 and bfloat16 in float32. An episode that is done ends
    the repetition: in a batch, rows that are done stand still while the others go on, and the
    envs of a ``SerialEnv`` or ``ParallelEnv`` are not called.

    Args:
        frame_skip: the number of steps.

    Raises:
        ArgumentError: ``frame_skip`` is no integer of at least 1.
        ChainError: the envs of a batch are unlike (when its specs are computed), or there is no
            env around to step (in a step).

    Example:
        >>> from tdx import FrameSkipTransform, GymEnv, TransformedEnv
        >>> env = TransformedEnv(GymEnv("CartPole-v1"), FrameSkipTransform(4))
        >>> env.rollout(2)["next", "reward"].flatten()
        tensor([4., 4.])
    """

    _is_verified = True
    _steps_env = True

    time_behaviour = TimeBehaviour.CONTROL

    def __init__(self, frame_skip: int = 1) -> None:
        super().__init__()
        if isinstance(frame_skip, bool) or not isinstance(frame_skip, int) or frame_skip < 1:
            raise ArgumentError(
                f"frame_skip must be an integer of at least 1, got {frame_skip!r}",
                hint="for example frame_skip=4",
            )
        self.frame_skip = frame_skip
        self._reward_keys: list[NestedKey] = []
        self._done_keys: list[NestedKey] = []
        self._stepped_keys: tuple[NestedKey, ...] = ()

    def _bind(self, input_spec: Composite, output_spec: Composite) -> None:
        if any(isinstance(part, StackedComposite) for part in output_spec.values()):
            raise ChainError(
                "FrameSkipTransform cannot step a batch of unlike envs",
                hint="put it into the envs of the batch",
            )
        self._reward_keys = unique_keys(output_spec["full_reward_spec"].keys(True, True))
        parts = output_spec.values()
        self._stepped_keys = tuple(key for part in parts for key in part.keys(True, True))
        self._done_keys = []
        for group in done_groups(output_spec["full_done_spec"]):
            ends = [key for key in group.keys if split_key(key)[-1] == "done"]
            self._done_keys += ends or group.keys

    @property
    def _written_keys(self) -> tuple[NestedKey, ...]:
        return () if self.frame_skip == 1 else self._stepped_keys

    # Steps

    def _step(self, tensordict: TensorDictBase, next_tensordict: TensorDictBase) -> TensorDictBase:
        if self.frame_skip == 1:
            return next_tensordict
        current, following = tensordict, next_tensordict
        going = self._going(following)
        totals = {key: _summable(read(following, key)) for key in self._reward_keys}
        for _ in range(self.frame_skip - 1):
            count = int(going.sum())
            if count == 0:
                break
            frame = following
            current = self._advanced(current, following, going if count < going.numel() else None)
            following = self._next_frame(current, following)
            if count < going.numel():
                keep_unmasked_rows(following, frame, {"_reset": going.unsqueeze(-1)}, going.ndim)
            self._add(totals, following, going)
            going = going & self._going(following)
        for key, total in totals.items():
            write(following, key, total)
        return following

    def _going(self, following: TensorDictBase) -> Tensor:
        """Which rows are not done, ``[*B]``."""
        batch = following.batch_size
        ended = torch.zeros(batch, dtype=torch.bool, device=following.device)
        for key in self._done_keys:
            ended = ended | read(following, key).reshape(*batch, -1).any(-1)
        return ~ended

    def _advanced(
        self, current: TensorDictBase, following: TensorDictBase, rows: Tensor | None
    ) -> TensorDictBase:
        """The input of the next frame: this frame's with its results and the same action."""
        held = current.exclude("next", "_step").set("next", following)
        result = advance(held, self._reward_keys)
        return result if rows is None else result.set("_step", rows)

    def _next_frame(self, current: TensorDictBase, following: TensorDictBase) -> TensorDictBase:
        """The output of one more step, as this stage sees it.

        Args:
            current: the step's input, with an action that has gone through the stages before.
            following: the output of the step before.
        """
        env, stages = self._before()
        for stage in reversed(stages):
            current = stage._inward(current)
        states = env.full_state_spec.keys(True, True)
        if states:
            # What the env reads of its own results must go back through the stages.
            given = following.exclude()
            for stage in reversed(stages):
                given = stage._inv_present(given)
            for key in states:
                value = given.get(key, None)
                if value is not None:
                    current.set(key, value)
        result = env._completed_step(current)
        for stage in stages:
            result = stage._step(current, result)
            current = stage._outward(current)
        return result

    def _before(self) -> tuple[EnvBase, list[Transform]]:
        """The env inside, and the single stages between it and this one."""
        found = upstream(self)
        if found is None:
            raise ChainError(
                "FrameSkipTransform needs an env to step",
                hint="put the transform into a TransformedEnv first",
            )
        env, stages = found
        return env, list(_flat(stages))

    @staticmethod
    def _add(totals: dict[NestedKey, Tensor], following: TensorDictBase, going: Tensor) -> None:
        for key, total in totals.items():
            reward = read(following, key)
            rows = expand_mask(going, reward, going.ndim)
            totals[key] = torch.where(rows, total + reward, total)

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Refuse stored data, which holds no env to step.

        Raises:
            ChainError: Always, unless the transform changes nothing anyway.
        """
        if self.frame_skip == 1:
            return tensordict
        raise ChainError(
            "it steps an env, and stored data has none",
            hint="leave it out of the chain of a replay buffer; stored steps hold its results",
            where=Where(transform="FrameSkipTransform"),
        )

    # Specs

    def transform_reward_spec(self, reward_spec: Composite) -> Composite:
        """The reward spec, with the bounds of a sum of 1 to ``frame_skip`` rewards."""
        result = reward_spec.clone()
        result.unlock_()
        for key, spec in reward_spec.items(True, True):
            result[key] = self._summed(spec)
        return result

    def _summed(self, spec: TensorSpec) -> TensorSpec:
        return spec if self.frame_skip == 1 else sum_spec(spec, self.frame_skip)

    def __repr__(self) -> str:
        return f"FrameSkipTransform(frame_skip={self.frame_skip})"


def _summable(reward: Tensor) -> Tensor:
    """Return a reward in the dtype of sums of it."""
    return reward.to(sum_dtype(reward.dtype))


def _flat(stages: Iterable[Transform]) -> Iterator[Transform]:
    for stage in stages:
        if isinstance(stage, Compose):
            yield from _flat(stage)
        else:
            yield stage

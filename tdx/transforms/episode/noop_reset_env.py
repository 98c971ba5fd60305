"""Take no-op steps after every reset."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from tensordict import TensorDictBase
from torch import Tensor

from tdx.core.envs.done_flags import all_reset_masks, expand_mask, keep_unmasked_rows
from tdx.core.envs.env_specs import DoneGroup, done_groups, ended_rows
from tdx.core.transforms import TimeBehavior, Transform
from tdx.core.transforms.inner_steps import end_keys, require_upstream, step_rows
from tdx.core.transforms.scan import reset_rows
from tdx.core.transforms.validation import check_integer
from tdx.foundation.errors import ChainError
from tdx.foundation.keys import NestedKey, normalize_key
from tdx.specs import Composite

if TYPE_CHECKING:
    from tdx.core.envs import EnvBase


class NoopResetEnv(Transform):
    """Take a random number of no-op steps after every reset, as for Atari.

    The no-op is action 0: the first choice of a discrete action, zero or the nearest valid value
    of a continuous one. If an episode ends during these steps, the env is reset and the
    remaining steps follow. Upstream stages see these steps as part of the episode; put counters
    and :class:`InitTracker` after this stage.

    In a batch each row has its own number of steps. This requires an env that can step some of
    its rows, such as ``SerialEnv``, ``ParallelEnv`` and the native envs, and no upstream stage
    that depends on earlier steps; otherwise put the transform into the envs of the batch.

    Args:
        noops: Maximum number of steps.
        random: Draw the number for each reset, from 1 to ``noops``; otherwise always ``noops``.

    Raises:
        ArgumentError: ``noops`` is not an integer of at least 0.
        ChainError: The transform is not in an env, or an upstream stage prevents stepping some
            rows (in a reset).

    Example:
        >>> from tdx import GymEnv, NoopResetEnv, StepCounter, TransformedEnv
        >>> env = TransformedEnv(GymEnv("Pendulum-v1"), StepCounter())
        >>> env = env.append_transform(NoopResetEnv(3, random=False))
        >>> env.reset()["step_count"]
        tensor([3])
    """

    why_not_exported = "it steps the env"
    _is_verified = True
    steps_env = True

    time_behavior = TimeBehavior.CONTROL

    def __init__(self, noops: int = 30, random: bool = True) -> None:
        check_integer(noops, "noops", 0, "for example noops=30")
        super().__init__()
        self.noops = noops
        self.random = random
        self._groups: tuple[DoneGroup, ...] = ()
        self._end_keys: list[NestedKey] = []
        self._actions: Composite | None = None
        self._reward_keys: list[NestedKey] = []

    def _bind(self, input_spec: Composite, output_spec: Composite) -> None:
        self._groups = done_groups(output_spec["full_done_spec"])
        self._end_keys = end_keys(output_spec["full_done_spec"])
        self._actions = input_spec["full_action_spec"]
        self._reward_keys = [
            normalize_key(key) for key in output_spec["full_reward_spec"].keys(True, True)
        ]

    def _reset(
        self, tensordict: TensorDictBase | None, tensordict_reset: TensorDictBase
    ) -> TensorDictBase:
        env, stages = self._upstream(tensordict_reset.ndim)
        left = self._draw_counts(tensordict, tensordict_reset)
        given = (
            None if tensordict is None else tensordict.exclude("next", *all_reset_masks(tensordict))
        )
        current = tensordict_reset
        while bool(left.any()):
            rows = left > 0
            current = self._step_rows(env, stages, given, current, rows)
            left = left - rows.long()
            current = self._reset_ended_rows(env, stages, current, rows)
        return current

    def _upstream(self, batch_dims: int) -> tuple[EnvBase, tuple[Transform, ...]]:
        """Return the base env and the upstream stages."""
        env, stages = require_upstream(self)
        stateful = [s for s in stages if s.time_behavior is not TimeBehavior.POINTWISE]
        if batch_dims and (stateful or not env.steps_some_rows):
            which = type(stateful[0] if stateful else env).__name__
            raise ChainError(
                f"{which}, upstream of it, cannot step some rows of a batch",
                hint="put NoopResetEnv into the envs of the batch: SerialEnv(4, make_with_noops)",
            )
        return env, stages

    def _draw_counts(self, given: TensorDictBase | None, reset: TensorDictBase) -> Tensor:
        """Return the number of steps of each row, ``[*B]``; 0 for rows that are not reset."""
        shape = reset.batch_size
        most = torch.full(shape, self.noops)
        if self.random and self.noops > 1:
            most = torch.randint(1, self.noops + 1, shape)
        # The reset of a single agent starts no episode.
        rows = reset_rows(given, "_reset", most)
        return most if rows is None else most * rows.cpu()

    def _step_rows(
        self,
        env: EnvBase,
        stages: tuple[Transform, ...],
        given: TensorDictBase | None,
        current: TensorDictBase,
        rows: Tensor,
    ) -> TensorDictBase:
        """Return the output of the reset after one no-op step of these rows ``[*B]``."""
        assert self._actions is not None
        before = current.clone(recurse=False)
        before = before if given is None else given.clone(recurse=False).update(before)
        for key, spec in self._actions.items(True, True):
            before.set(key, spec.project(spec.zero()))
        return step_rows(env, stages, before, rows, current).exclude(*self._reward_keys)

    def _reset_ended_rows(
        self,
        env: EnvBase,
        stages: tuple[Transform, ...],
        current: TensorDictBase,
        rows: Tensor,
    ) -> TensorDictBase:
        """Reset those of these rows ``[*B]`` whose episode has ended."""
        masks = {
            key: ended & expand_mask(rows.to(ended.device), ended, current.ndim)
            for key, ended in ended_rows(current, self._groups, self._end_keys).items()
        }
        if not any(bool(mask.any()) for mask in masks.values()):
            return current
        given = current.clone(recurse=False)
        for key, mask in masks.items():
            given.set(key, mask)
        inner = given.clone(recurse=False)
        for stage in reversed(stages):
            inner = stage._reset_env_preprocess(inner)
        whole = all(bool(mask.all()) for mask in masks.values())
        result = env.completed_reset(inner.exclude(*masks) if whole else inner)
        for stage in stages:
            result = stage._reset(given, result)
        if not whole:
            keep_unmasked_rows(result, current, masks, current.ndim)
        return result

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Return stored data unchanged: it contains the results of the no-ops."""
        return tensordict

    def __repr__(self) -> str:
        return f"NoopResetEnv(noops={self.noops}, random={self.random})"

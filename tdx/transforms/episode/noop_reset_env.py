"""Do nothing for a while after every reset."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from tensordict import TensorDictBase
from torch import Tensor

from tdx.core.envs.done_flags import all_reset_masks, expand_mask, keep_unmasked_rows
from tdx.core.transforms import TimeBehaviour, Transform
from tdx.core.transforms.spec_edits import DoneGroup, done_groups
from tdx.core.transforms.upstream import upstream
from tdx.errors import ArgumentError, ChainError, Where
from tdx.keys import NestedKey, normalize_key, split_key
from tdx.specs import Composite
from tdx.tensordicts import read

if TYPE_CHECKING:
    from tdx.core.envs import EnvBase


class NoopResetEnv(Transform):
    """Make a random number of steps that do nothing after every reset, as for Atari.

    A step that does nothing has the action 0: the first of a discrete action, zero or the value
    nearest to it of a continuous one. Where the env ends meanwhile it is reset, and the steps
    that are left follow. The stages before this one see all of it as steps of the episode;
    put counters and :class:`InitTracker` after it.

    In a batch each row has a number of its own. That needs an env that can step some of its
    rows alone, as ``SerialEnv``, ``ParallelEnv`` and the native envs can, and no stage before
    this one that depends on earlier steps; otherwise put it into the envs of the batch.

    Args:
        noops: the most steps to make.
        random: whether their number is drawn anew for each reset, from 1 to ``noops``; otherwise
            it always is ``noops``.

    Raises:
        ArgumentError: ``noops`` is no integer of at least 0.
        ChainError: in a reset, it is in no env, or a stage before it keeps a batch from it.

    Example:
        >>> from tdx import GymEnv, NoopResetEnv, StepCounter, TransformedEnv
        >>> env = TransformedEnv(GymEnv("Pendulum-v1"), StepCounter())
        >>> env = env.append_transform(NoopResetEnv(3, random=False))
        >>> env.reset()["step_count"]
        tensor([3])
    """

    _is_verified = True
    _steps_env = True

    time_behaviour = TimeBehaviour.CONTROL

    def __init__(self, noops: int = 30, random: bool = True) -> None:
        if isinstance(noops, bool) or not isinstance(noops, int) or noops < 0:
            raise ArgumentError(
                f"noops must be an integer of at least 0, got {noops!r}",
                hint="for example noops=30",
            )
        super().__init__()
        self.noops = noops
        self.random = random
        self._groups: tuple[DoneGroup, ...] = ()
        self._actions: Composite | None = None
        self._reward_keys: list[NestedKey] = []

    def _bind(self, input_spec: Composite, output_spec: Composite) -> None:
        self._groups = done_groups(output_spec["full_done_spec"])
        self._actions = input_spec["full_action_spec"]
        self._reward_keys = [
            normalize_key(key) for key in output_spec["full_reward_spec"].keys(True, True)
        ]

    def _reset(
        self, tensordict: TensorDictBase | None, tensordict_reset: TensorDictBase
    ) -> TensorDictBase:
        env, stages = self._before(tensordict_reset.ndim)
        left = self._drawn(tensordict, tensordict_reset)
        given = (
            None if tensordict is None else tensordict.exclude("next", *all_reset_masks(tensordict))
        )
        current = tensordict_reset
        while bool(left.any()):
            rows = left > 0
            current = self._after_step(env, stages, given, current, rows)
            left = left - rows.long()
            current = self._after_ends(env, stages, current, rows)
        return current

    def _before(self, batch_dims: int) -> tuple[EnvBase, tuple[Transform, ...]]:
        """The env inside, and the stages before this one."""
        found = upstream(self)
        if found is None:
            raise ChainError(
                "NoopResetEnv steps an env and is in none", hint="put it into a TransformedEnv"
            )
        env, stages = found
        stateful = [s for s in stages if s.time_behaviour is not TimeBehaviour.POINTWISE]
        if batch_dims and (stateful or not env._steps_some_rows):
            which = type(stateful[0] if stateful else env).__name__
            raise ChainError(
                f"{which} before it cannot step some rows of a batch",
                hint="put NoopResetEnv into the envs of the batch: SerialEnv(4, make_with_noops)",
            )
        return env, stages

    def _drawn(self, given: TensorDictBase | None, reset: TensorDictBase) -> Tensor:
        """How many steps each row makes, ``[*B]``; none where the reset is not for it."""
        shape = reset.batch_size
        most = torch.full(shape, self.noops)
        if self.random and self.noops > 1:
            most = torch.randint(1, self.noops + 1, shape)
        masks = [] if given is None else list(all_reset_masks(given).values())
        if not masks:
            return most
        begun = torch.stack([mask.reshape(*shape, -1).any(-1).cpu() for mask in masks]).any(0)
        return most * begun

    def _after_step(
        self,
        env: EnvBase,
        stages: tuple[Transform, ...],
        given: TensorDictBase | None,
        current: TensorDictBase,
        rows: Tensor,
    ) -> TensorDictBase:
        """What a reset would return one step later, in these rows ``[*B]``."""
        assert self._actions is not None
        before = current.clone(recurse=False)
        before = before if given is None else given.clone(recurse=False).update(before)
        for key, spec in self._actions.items(True, True):
            before.set(key, spec.project(spec.zero()))
        for stage in reversed(stages):
            if stage.invertible:
                before = stage._inv_call(before)
        if not bool(rows.all()):
            before.set("_step", rows.to(before.device or "cpu"))
        following = env._completed_step(before)
        for stage in stages:
            following = stage._step(before, following)
        following = following.exclude(*self._reward_keys)
        return _merged(rows, following, current)

    def _after_ends(
        self,
        env: EnvBase,
        stages: tuple[Transform, ...],
        current: TensorDictBase,
        rows: Tensor,
    ) -> TensorDictBase:
        """The same, where those of these rows that have ended begin anew."""
        masks: dict[NestedKey, Tensor] = {}
        for group in self._groups:
            flags = [read(current, key) for key in group.keys if split_key(key)[-1] == "done"]
            flags = flags or [read(current, key) for key in group.keys]
            ended = torch.stack(flags).any(0)
            masks[group.reset_key] = ended & expand_mask(rows.to(ended.device), ended, current.ndim)
        if not any(bool(mask.any()) for mask in masks.values()):
            return current
        given = current.clone(recurse=False)
        for key, mask in masks.items():
            given.set(key, mask)
        inner = given.clone(recurse=False)
        for stage in reversed(stages):
            inner = stage._reset_env_preprocess(inner)
        whole = all(bool(mask.all()) for mask in masks.values())
        result = env._completed_reset(inner.exclude(*masks) if whole else inner)
        for stage in stages:
            result = stage._reset(given, result)
        if not whole:
            keep_unmasked_rows(result, current, masks, current.ndim)
        return result

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Refuse stored data, which holds no env to step.

        Raises:
            ChainError: Always, unless the transform changes nothing anyway.
        """
        if self.noops == 0:
            return tensordict
        raise ChainError(
            "it steps an env, and stored data has none",
            hint="leave it out of the chain of a replay buffer; stored steps hold its results",
            where=Where(transform="NoopResetEnv"),
        )

    def __repr__(self) -> str:
        return f"NoopResetEnv(noops={self.noops}, random={self.random})"


def _merged(rows: Tensor, new: TensorDictBase, old: TensorDictBase) -> TensorDictBase:
    """The new entries in these rows ``[*B]``, the old ones in the others."""
    if not bool(rows.all()):
        keep_unmasked_rows(new, old, {"_reset": rows.to(new.device or "cpu")}, new.ndim)
    return new

"""The abstract env: ``step``, ``reset``, ``rollout``, and what they are made of."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from tensordict import TensorDictBase, is_tensor_collection
from torch import nn

from tdx.core.envs.done_flags import (
    any_done,
    check_mask,
    complete_done,
    complete_rewards,
    keep_unmasked_rows,
    reset_masks,
)
from tdx.core.envs.env_rollouts import EnvRollouts
from tdx.core.envs.step_mdp import advance
from tdx.errors import ArgumentError
from tdx.keys import NestedKey, sibling_key, split_key
from tdx.tensordicts import (
    is_step_result,
    mark_step_result,
    new_tensordict,
    plain_entries,
    read,
    unstack_parts,
    update_entries,
    write,
)

if TYPE_CHECKING:
    from tdx.core.envs.spec_findings import SpecFinding

StepFields = Callable[[TensorDictBase], tuple[dict[str, Any], Any]]


class EnvBase(EnvRollouts):
    """Abstract env over TensorDicts.

    A subclass sets its specs in ``__init__`` and implements :meth:`_step`, :meth:`_reset` and
    :meth:`_set_seed`.

    Args:
        device: where the env's tensors live; the CPU by default.
        batch_size: how many envs are run at once, ``[*B]``; empty for one.
        _batch_locked: whether only TensorDicts of that batch size are taken. An env without
            state of its own may also take ``[*A, *B]``.

    Example:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> from tdx import Composite, Unbounded
        >>> class Counter(EnvBase):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.observation_spec = Composite(count=Unbounded((1,)))
        ...         self.action_spec = Unbounded((1,))
        ...     def _reset(self, tensordict=None, **kwargs):
        ...         return TensorDict(count=torch.zeros(1))
        ...     def _step(self, tensordict):
        ...         count = tensordict["count"] + 1
        ...         return TensorDict(count=count, reward=torch.ones(1), done=count > 2)
        ...     def _set_seed(self, seed):
        ...         return None
        >>> Counter().rollout(10)["next", "count"].flatten()
        tensor([1., 2., 3.])
    """

    _writes_all_outputs: ClassVar[bool] = False
    """Whether ``_step`` and ``_reset`` write every declared reward and flag as the spec says."""

    _steps_some_rows: bool = False
    """Whether ``_step`` leaves rows alone that are not set in ``_step``, a mask ``[*B]``."""

    @property
    def _step_fields(self) -> StepFields | None:
        """:meth:`_step` as a dict of root entries, and the info; ``None`` without such a form."""
        return None

    planned: bool = True
    """Whether rollouts may run by a plan, with what can wait applied to many steps at once."""

    _meter: Any = None
    """What measures the env's calls while it is profiled; see :mod:`tdx.core.meter`."""

    @property
    def _resets_by_mask(self) -> bool:
        """Whether a reset of no rows at all changes nothing that anybody could see."""
        return False

    @property
    def _step_reads(self) -> tuple[NestedKey, ...] | None:
        """What ``_step`` and ``_reset`` read beside actions and masks; ``None`` if unknown."""
        return None

    @property
    def _raw_envs(self) -> tuple[Any, ...] | None:
        """The single Gymnasium envs that this env is made of, without TensorDicts, if it is."""
        return None

    def _stepped_raw(self, last: dict[NestedKey, Any]) -> None:
        """Take note of the last step ``[*B, ...]`` of those that :attr:`_raw_envs` made."""

    def __init__(
        self,
        *,
        device: torch.device | str | int | None = None,
        batch_size: torch.Size | tuple[int, ...] | list[int] | None = None,
        _batch_locked: bool = True,
    ) -> None:
        super().__init__(device=device, batch_size=batch_size)
        self._batch_locked = _batch_locked

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        """One step: a new TensorDict with observations, reward and done flags, ``[*B]``."""
        raise NotImplementedError

    def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
        """A new TensorDict with the first observations, ``[*B]``.

        Where ``tensordict`` holds ``_reset`` masks only those rows must be reset; what the
        others hold is put right afterwards.
        """
        raise NotImplementedError

    def _set_seed(self, seed: int | None) -> None:
        """Seed the env's own randomness."""
        raise NotImplementedError

    @property
    def batch_locked(self) -> bool:
        """Whether only TensorDicts of the env's own batch size are taken."""
        return self._batch_locked

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """The same as :meth:`step`."""
        return self.step(tensordict)

    def step(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Make one step.

        Args:
            tensordict: holds the action, of shape ``[*B]``. What it already holds under
                ``next`` prevails over what the step computes, unless an earlier step of this
                very TensorDict has put it there.

        Returns:
            the same TensorDict, with the result under ``next``.
        """
        entries = plain_entries(tensordict)
        if (
            entries is None
            or tensordict.batch_size != self._batch_size
            or tensordict.device != self._device
        ):
            return self._uncommon_step(tensordict)
        preset = entries.get("next")
        if preset is not None and is_step_result(preset, tensordict):
            preset = None
        following = self._completed_step(tensordict, preset)
        if preset is not None:
            update_entries(following, preset)
        entries["next"] = following
        mark_step_result(following, tensordict)
        return tensordict

    def _uncommon_step(self, given: TensorDictBase) -> TensorDictBase:
        """:meth:`step` of a TensorDict of another device, or that is lazy or locked."""
        self._check_batch(given)
        if given.is_locked:
            raise ArgumentError(
                "the TensorDict is locked, so the step cannot write its result into it",
                hint="give env.step(tensordict.clone(recurse=False))",
            )
        device = self.device
        moved = given.device is not None and given.device != device
        tensordict = given.to(device) if moved else given
        preset = tensordict._get_str("next", None)
        if any(is_step_result(part._get_str("next", None), part) for part in unstack_parts(given)):
            preset = None
        following = self._completed_step(tensordict, preset)
        if preset is not None:
            following.update(preset)
        given.set("next", following.to(given.device) if moved else following)
        for part in unstack_parts(given):
            mark_step_result(part._get_str("next", None), part)
        return given

    def _completed_step(
        self, tensordict: TensorDictBase, preset: TensorDictBase | None = None
    ) -> TensorDictBase:
        """:meth:`_step`, with every declared flag and reward in place."""
        following = self._step(tensordict)
        if not self._writes_all_outputs:
            rewards, flags = self.full_reward_spec, self.full_done_spec
            complete_rewards(following, self._expanded(rewards, following))
            complete_done(following, self._expanded(flags, following), reset=False)
        return following

    def _completed_reset(
        self, tensordict: TensorDictBase | None = None, **kwargs: Any
    ) -> TensorDictBase:
        """:meth:`_reset`, with every declared flag in place."""
        result = self._reset(tensordict, **kwargs)
        if not self._writes_all_outputs:
            complete_done(result, self._expanded(self.full_done_spec, result), reset=True)
        return result

    def _expanded(self, spec: Any, tensordict: TensorDictBase) -> Any:
        """A spec of this env for a TensorDict ``[*A, *B]``, where the env takes that."""
        extra = tensordict.batch_size[: tensordict.ndim - len(self._batch_size)]
        return spec.expand(*extra, *spec.shape) if extra and not self.batch_locked else spec

    def reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
        """Begin new episodes.

        Args:
            tensordict: where to write, ``[*B]``. Where it holds ``_reset`` masks (bool, of the
                done flag's shape) only those rows are reset, the others keep their values.
            **kwargs: passed to the env's own reset.

        Returns:
            ``tensordict``, or a new one.

        Raises:
            EnvError: the mask has a wrong shape or dtype.
        """
        if tensordict is not None:
            self._check_batch(tensordict)
        masks = reset_masks(tensordict, self.reset_keys)
        for key, mask in masks.items():
            check_mask(mask, self._flag_spec_beside(key, tensordict), key)
        if masks and tensordict is not None:
            # A group without a mask beside groups with one is not reset.
            for key in self.reset_keys:
                if key not in masks:
                    masks[key] = self._flag_spec_beside(key, tensordict).zero()
                    write(tensordict, key, masks[key])
        # Asking an accelerator whether every row is meant would make the host wait for it.
        partial = bool(masks) and (
            self._device.type != "cpu" or not all(bool(mask.all()) for mask in masks.values())
        )
        result = self._completed_reset(tensordict, **kwargs)
        if tensordict is None:
            return result
        if partial:
            result = result.clone(recurse=False)
            keep_unmasked_rows(result, tensordict, masks, tensordict.ndim)
        for key in masks:
            del tensordict[key]
        return tensordict.update(result)

    def _flag_spec_beside(self, reset_key: NestedKey, tensordict: TensorDictBase | None) -> Any:
        for key, spec in self.full_done_spec.items(True, True):
            if sibling_key(key, "_reset") == reset_key:
                return spec if tensordict is None else self._expanded(spec, tensordict)
        raise KeyError(reset_key)

    def _check_batch(self, tensordict: TensorDictBase) -> None:
        if self.batch_locked and tensordict.batch_size != self.batch_size:
            raise ArgumentError(
                f"the TensorDict has batch size {tuple(tensordict.batch_size)}, the env "
                f"{tuple(self.batch_size)}",
                hint="the env is batch-locked: give it a TensorDict of its own batch size",
            )

    def step_mdp(self, tensordict: TensorDictBase) -> TensorDictBase:
        """The input of the next step: root overwritten by ``next``, without rewards."""
        dropped = self._key_cache.get("rewards")
        if dropped is None:
            dropped = self._key_cache["rewards"] = self.reward_keys
        return advance(tensordict, dropped)

    def maybe_reset(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Reset the rows whose done flag is set at the root, if any is."""
        # To look at a flag the host would have to wait for an accelerator.
        looks = self._device.type == "cpu" or not self._resets_by_mask
        if looks and not any_done(tensordict, self.done_keys):
            return tensordict
        for group in self.done_keys_groups:
            ends = [key for key in group if split_key(key)[-1] == "done"] or group
            flag = read(tensordict, ends[0])
            for other in ends[1:]:
                flag = flag | read(tensordict, other)
            write(tensordict, sibling_key(group[0], "_reset"), flag.clone())
        return self.reset(tensordict)

    def step_and_maybe_reset(
        self, tensordict: TensorDictBase
    ) -> tuple[TensorDictBase, TensorDictBase]:
        """One step, and the input of the next one with finished episodes begun anew.

        Returns:
            the step's TensorDict with ``next``, and the next step's input.
        """
        tensordict = self.step(tensordict)
        return tensordict, self.maybe_reset(self.step_mdp(tensordict))

    def rand_action(self, tensordict: TensorDictBase | None = None) -> TensorDictBase:
        """Write a random action from the action spec.

        Args:
            tensordict: where to write, ``[*B]``; a new one by default.
        """
        if tensordict is None:
            tensordict = new_tensordict({}, self.batch_size, self.device)
        drawn = self._expanded(self.full_action_spec, tensordict).rand()
        for name in drawn.keys():
            value, held = read(drawn, name), read(tensordict, name)
            if held is not None and is_tensor_collection(value):
                held.update(value)
            else:
                tensordict.set(name, value)
        return tensordict

    def rand_step(self, tensordict: TensorDictBase | None = None) -> TensorDictBase:
        """One step with a random action.

        Args:
            tensordict: the step's input, ``[*B]``; a new one by default.
        """
        return self.step(self.rand_action(tensordict))

    def set_seed(self, seed: int | None = None, static_seed: bool = False) -> int | None:
        """Seed the env's own randomness; actions drawn at random follow ``torch.manual_seed``.

        Args:
            seed: the seed of the first env; env ``i`` of a batch gets ``seed + i``.
            static_seed: whether every env of a batch gets the same seed.

        Returns:
            the seed for an env made beside this one: ``seed`` plus the number of envs, or
            ``seed`` itself if ``static_seed`` is on.
        """
        self._set_seed(seed)
        if seed is None or static_seed:
            return seed
        return seed + max(self.numel(), 1)

    def _stage_lies(
        self, check_dtype: bool, tensordict: TensorDictBase | None, steps: int
    ) -> list[SpecFinding]:
        """What the stages of the env's chain get wrong; an env without a chain has none."""
        return []

    def append_transform(
        self, transform: nn.Module | Callable[[TensorDictBase], TensorDictBase]
    ) -> EnvBase:
        """This env with a transform around it; the env itself stays as it is."""
        # The engine lies above this layer, so it is named here and not imported.
        wrap: Callable[..., EnvBase] = import_module("tdx.core").TransformedEnv
        return wrap(self, transform)

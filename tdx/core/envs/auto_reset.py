"""Envs that start the next episode themselves."""

from __future__ import annotations

import math
from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor

from tdx.core.envs.done_flags import expand_mask, keep_unmasked_rows, mask_for_entry, reset_masks
from tdx.core.envs.env_base import EnvBase
from tdx.errors import ArgumentError
from tdx.keys import NestedKey, sibling_key, split_key
from tdx.tensordicts import new_tensordict, read, write

_PARTS = ("observation", "reward", "done", "action", "state")


class AutoResetEnv(EnvBase):
    """An env whose last step of an episode returns the first observations of the next one.

    A reset after such a step returns these observations and does not reset the env inside. In
    the ``next`` of the step they are replaced, since they do not belong to its episode. An env
    class with ``auto_reset=True`` creates it: ``MyEnv(auto_reset=True)``.

    Args:
        env: Env that resets itself.
        replace: If False, leave the observations of the next episode in ``next``.
        fill_float: Value that replaces floating-point observations. ``None``: do not replace
            them.
        fill_int: Value that replaces integers.
        fill_bool: Value that replaces bools.

    Raises:
        ArgumentError: ``env`` is not an env.
    """

    def __init__(
        self,
        env: EnvBase,
        replace: bool = True,
        *,
        fill_float: float | None = math.nan,
        fill_int: int | None = -1,
        fill_bool: bool | None = False,
    ) -> None:
        if not isinstance(env, EnvBase):
            raise ArgumentError(
                f"env must be an env, got {type(env).__name__}",
                hint="pass an env that resets itself",
            )
        super().__init__(device=env.device, batch_size=env.batch_size)
        for part in _PARTS:
            setattr(self, f"full_{part}_spec", getattr(env, f"full_{part}_spec").clone())
        self.base_env = env
        self._fills = (fill_float, fill_int, fill_bool) if replace else (None, None, None)
        self._first: TensorDictBase | None = None
        self._ended: dict[NestedKey, Tensor] = {}

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        following = self.base_env._completed_step(tensordict)
        self._ended = self._ended_rows(following)
        self._first = None
        if any(bool(mask.any()) for mask in self._ended.values()):
            self._first = following.select(*self.observation_keys, strict=False)
            following = following.clone(recurse=False)
            self._replace_first(following)
        return following

    def _ended_rows(self, following: TensorDictBase) -> dict[NestedKey, Tensor]:
        """Return the rows that have ended by reset key, in the shape of the reset masks."""
        found: dict[NestedKey, Tensor] = {}
        for group in self.done_keys_groups:
            key = next((key for key in group if split_key(key)[-1] == "done"), group[0])
            found[sibling_key(key, "_reset")] = read(following, key)
        return found

    def _replace_first(self, following: TensorDictBase) -> None:
        for key in self.observation_keys:
            value, rows = read(following, key), mask_for_entry(key, self._ended, self.ndim)
            if isinstance(value, Tensor) and rows is not None:
                fill = self._fill_of(value.dtype)
                if fill is not None:
                    mask = expand_mask(rows, value, self.ndim)
                    write(following, key, value.masked_fill(mask, fill))

    def _fill_of(self, dtype: torch.dtype) -> float | bool | None:
        floats, integers, bools = self._fills
        if dtype is torch.bool:
            return bools
        return floats if dtype.is_floating_point else integers

    def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
        first, self._first = self._first, None
        if tensordict is None or first is None:
            return self._reset_inside(tensordict, **kwargs)
        masks = reset_masks(tensordict, self.reset_keys)
        wanted = masks or {key: torch.ones_like(rows) for key, rows in self._ended.items()}
        missing = {key: mask & ~self._ended[key] for key, mask in wanted.items()}
        result = first.update(self.full_done_spec.zero())
        if not any(bool(mask.any()) for mask in missing.values()):
            return result
        if all(bool(mask.all()) for mask in missing.values()):
            return self._reset_inside(tensordict.exclude(*masks), **kwargs)
        # Only some of the rows have begun their next episode.
        inner = tensordict.clone(recurse=False)
        for key, mask in missing.items():
            write(inner, key, mask)
        others = self._reset_inside(inner, **kwargs).clone(recurse=False)
        keep_unmasked_rows(others, result, missing, self.ndim)
        return others

    def _reset_inside(self, tensordict: TensorDictBase | None, **kwargs: Any) -> TensorDictBase:
        if tensordict is None or not reset_masks(tensordict, self.reset_keys):
            tensordict = (
                None if tensordict is None else new_tensordict({}, self.batch_size, self.device)
            )
        return self.base_env._completed_reset(tensordict, **kwargs)

    def _set_seed(self, seed: int | None) -> None:
        self.base_env._set_seed(seed)

    def close(self, *, raise_if_closed: bool = True) -> None:
        """Close the env inside."""
        self.base_env.close(raise_if_closed=raise_if_closed)
        super().close()

    def _move(self, device: torch.device) -> None:
        self.base_env._move_to(device)
        super()._move(device)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name.startswith("_") or "base_env" not in self.__dict__.get("_modules", {}):
                raise
        return getattr(self.base_env, name)

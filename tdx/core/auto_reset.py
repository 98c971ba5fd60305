"""Envs that start the next episode themselves."""

from __future__ import annotations

import math
from typing import Any, Literal

import torch
from tensordict import TensorDictBase
from torch import Tensor, nn

from tdx.core.envs.done_flags import expand_mask, keep_unmasked_rows, mask_for_entry, reset_masks
from tdx.core.envs.env_base import EnvBase
from tdx.core.envs.env_specs import DoneGroup, done_groups, ended_rows
from tdx.core.transformed_env import TransformedEnv
from tdx.core.transforms import Compose, TimeBehavior, Transform
from tdx.core.transforms.callable_transform import TensorDictFunction
from tdx.core.transforms.inner_steps import end_keys
from tdx.foundation.errors import ArgumentError, ChainError, StoredDataError
from tdx.foundation.keys import NestedKey, normalize_key
from tdx.foundation.tensordicts import new_tensordict, read, write
from tdx.specs import Composite


class AutoResetTransform(Transform):
    """Keep the first observations of an episode until they are requested by a reset.

    An env that resets itself returns them in the last step of the episode before, where this
    transform replaces them. It is the first stage of an :class:`AutoResetEnv`.

    Args:
        replace: If False, leave the observations of the next episode in ``next``, whatever the
            other arguments are.
        fill_float: Value that replaces floating-point observations. ``"nan"`` is NaN. ``None``:
            do not replace them.
        fill_int: Value that replaces integers.
        fill_bool: Value that replaces bools.

    Raises:
        ChainError: The stage is in another env than an ``AutoResetEnv`` (in a reset).

    Example:
        >>> AutoResetTransform(fill_float=0.0)
        AutoResetTransform(fill_float=0.0, fill_int=-1, fill_bool=False)
    """

    time_behavior = TimeBehavior.CONTROL
    episode_memory = ("_ended",)
    _ended: dict[NestedKey, Tensor]
    """Rows that have ended in the last step by reset key, in the shape of the reset masks."""

    def __init__(
        self,
        *,
        replace: bool | None = None,
        fill_float: float | Literal["nan"] | None = "nan",
        fill_int: int | None = -1,
        fill_bool: bool | None = False,
    ) -> None:
        super().__init__()
        if replace is False:
            fill_float = fill_int = fill_bool = None
        self.fill_float = math.nan if fill_float == "nan" else fill_float
        self.fill_int, self.fill_bool = fill_int, fill_bool
        self._groups: tuple[DoneGroup, ...] = ()
        self._end_keys: list[NestedKey] = []
        self._observation_keys: tuple[NestedKey, ...] = ()
        self._first: TensorDictBase | None = None

    def _bind(self, input_spec: Composite, output_spec: Composite) -> None:
        self._groups = done_groups(output_spec["full_done_spec"])
        self._end_keys = end_keys(output_spec["full_done_spec"])
        keys = output_spec["full_observation_spec"].keys(True, True)
        self._observation_keys = tuple(normalize_key(key) for key in keys)

    def _step(self, tensordict: TensorDictBase, next_tensordict: TensorDictBase) -> TensorDictBase:
        self._ended = ended_rows(next_tensordict, self._groups, self._end_keys)
        self._first = None
        if any(bool(mask.any()) for mask in self._ended.values()):
            self._first = next_tensordict.select(*self._observation_keys, strict=False)
            next_tensordict = next_tensordict.clone(recurse=False)
            lead = next_tensordict.ndim
            for key in self._observation_keys:
                value, rows = read(next_tensordict, key), mask_for_entry(key, self._ended, lead)
                if not isinstance(value, Tensor) or rows is None:
                    continue
                fill = self.fill_float if value.dtype.is_floating_point else self.fill_int
                if value.dtype is torch.bool:
                    fill = self.fill_bool
                if fill is not None:
                    mask = expand_mask(rows, value, lead)
                    write(next_tensordict, key, value.masked_fill(mask, fill))
        return next_tensordict

    def take_first(self) -> tuple[TensorDictBase | None, dict[NestedKey, Tensor]]:
        """Return what the last step kept, once.

        Returns:
            First observations of the rows that have ended, ``[*B]``, and these rows by reset key;
            ``None`` and no rows if none has.
        """
        first, self._first = self._first, None
        return (first, self._ended) if self._ended else (None, {})

    def _reset(
        self, tensordict: TensorDictBase | None, tensordict_reset: TensorDictBase
    ) -> TensorDictBase:
        raise ChainError(
            "AutoResetTransform needs an env that leaves resets to it",
            hint="wrap the env that resets itself: AutoResetEnv(env, AutoResetTransform())",
        )

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Raise an error: stored data does not tell which observations an env has replaced."""
        raise StoredDataError(
            "AutoResetTransform does not map stored data", hint="use it in an AutoResetEnv"
        )

    def __repr__(self) -> str:
        fills = {name: getattr(self, name) for name in ("fill_float", "fill_int", "fill_bool")}
        return f"AutoResetTransform({', '.join(f'{k}={v}' for k, v in fills.items())})"


class AutoResetEnv(TransformedEnv):
    """An env that resets itself in the last step of an episode.

    That step returns the first observations of the next episode. A reset after it returns these
    observations and does not reset the env inside. In the ``next`` of the step they are replaced,
    since they do not belong to its episode. An env
    class with ``auto_reset=True`` creates it: ``MyEnv(auto_reset=True)``.

    Args:
        env: Env that resets itself.
        transform: Keeps and replaces observations; ``AutoResetTransform()`` by default. It is the
            first stage of the chain; :meth:`append_transform` adds others.
        base_env: Same as ``env``.

    Raises:
        ArgumentError: ``env`` is not an env, or the transform is not an ``AutoResetTransform``.
        ChainError: Another stage is inserted before it.
    """

    def __init__(
        self,
        env: EnvBase | None = None,
        transform: AutoResetTransform | None = None,
        *,
        base_env: EnvBase | None = None,
    ) -> None:
        super().__init__(env, transform or AutoResetTransform(), base_env=base_env)

    def _adopt(self, transform: Transform) -> None:
        first = transform[0] if isinstance(transform, Compose) and len(transform) else transform
        if not isinstance(first, AutoResetTransform):
            raise ArgumentError(
                "the first stage of an AutoResetEnv must be an AutoResetTransform, "
                f"got {type(first).__name__}",
                hint="append other transforms: env.append_transform(transform)",
            )
        super()._adopt(transform)

    def insert_transform(
        self, index: int, transform: nn.Module | TensorDictFunction
    ) -> TransformedEnv:
        """Insert a stage after the first one; see :meth:`TransformedEnv.insert_transform`."""
        if index in (0, -len(self.stages)):
            raise ChainError(
                "the first stage of an AutoResetEnv is its AutoResetTransform",
                hint="use append_transform, or insert at index 1",
            )
        return super().insert_transform(index, transform)

    def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
        others = self.stages[1:]
        if tensordict is None:
            result = self._reset_before_others(None, **kwargs)
            tensordict = new_tensordict({}, self.batch_size, self.device)
        else:
            inner = tensordict
            for stage in reversed(others):
                inner = stage._reset_env_preprocess(inner.clone(recurse=False))
            result = self._reset_before_others(inner, **kwargs)
        for stage in others:
            result = stage._reset(tensordict, result)
        return result

    def _reset_before_others(
        self, tensordict: TensorDictBase | None, **kwargs: Any
    ) -> TensorDictBase:
        """Return the result of a reset after the first stage."""
        stage = self.stages[0]
        assert isinstance(stage, AutoResetTransform)
        first, ended = stage.take_first()
        if tensordict is None or first is None:
            return self._reset_inside(tensordict, **kwargs)
        masks = reset_masks(tensordict, self.reset_keys)
        wanted = masks or {key: torch.ones_like(rows) for key, rows in ended.items()}
        missing = {key: mask & ~ended[key] for key, mask in wanted.items()}
        result = first.update(self.base_env.full_done_spec.zero())
        if not any(bool(mask.any()) for mask in missing.values()):
            return result
        if all(bool(mask.all()) for mask in missing.values()):
            return self._reset_inside(tensordict.exclude(*masks), **kwargs)
        # Only some of the rows are in their next episode.
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
        # The specs bind the stages, which the first step needs.
        self.env_specs.compute()
        return self.base_env.completed_reset(tensordict, **kwargs)


def create_auto_reset_env(env: EnvBase, replace: bool) -> AutoResetEnv:
    """Return what ``MyEnv(auto_reset=True, auto_reset_replace=replace)`` creates around an env."""
    return AutoResetEnv(env, AutoResetTransform(replace=replace))

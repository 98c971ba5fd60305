"""Statistics of all values that a transform has seen: shared, frozen, copied and saved."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Self

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from tdx.core.transforms.moments import loc_and_scale, mean_and_variance, no_moments
from tdx.core.transforms.transform import ObservationTransform
from tdx.errors import ChainError, Where
from tdx.keys import NestedKey, split_key

Lock = AbstractContextManager[Any]


class RunningStatistics(ObservationTransform):
    """A transform that keeps mean and variance of each in-key in buffers.

    Attributes:
        lock: held while statistics are updated or read.
        eps: a variance below this counts as this.
    """

    lock: Lock | None = None
    eps: float
    _frozen = False

    def _set_keys(
        self, in_keys: Sequence[NestedKey] | None, out_keys: Sequence[NestedKey] | None
    ) -> None:
        super()._set_keys(in_keys, out_keys)
        self._names = {key: f"statistics/{'/'.join(split_key(key))}" for key in self._in_keys}
        for name in self._names.values():
            if name not in self._buffers:
                self.register_buffer(name, None)

    def _require(
        self, key: NestedKey, name: str, shape: torch.Size, device: torch.device | None
    ) -> None:
        """Make the statistics of an entry, or check that those there are fit."""
        held = self._buffers[name]
        if held is None:
            self._buffers[name] = no_moments(shape, device)
        elif held.shape[1:] != shape:
            raise ChainError(
                f"the statistics are of shape {tuple(held.shape[1:])}, the entry has "
                f"{tuple(shape)}",
                hint="use a new VecNorm, or load the statistics of this env",
                where=Where(key=key),
            )

    def _require_for(self, key: NestedKey, value: Tensor, batch_dims: int) -> None:
        """:meth:`_require` for an entry ``[*B, ...]``; known statistics say what is beyond B."""
        name = self._names[key]
        held = self._buffers[name]
        start = batch_dims if held is None else max(value.ndim - held.ndim + 1, 0)
        self._require(key, name, value.shape[start:], value.device)

    # Statistics

    def _by_key(self, function: Callable[[Tensor], Tensor]) -> TensorDictBase:
        result = TensorDict({})
        with self.lock or nullcontext():
            for key, name in self._names.items():
                held = self._buffers[name]
                if held is not None:
                    result.set(key, function(held))
        return result

    @property
    def loc(self) -> TensorDictBase:
        """The running mean of each in-key, float64; zero before the first value."""
        return self._by_key(lambda held: mean_and_variance(held)[0])

    @property
    def var(self) -> TensorDictBase:
        """The running variance of each in-key, float64; one before the first value."""
        return self._by_key(lambda held: mean_and_variance(held)[1])

    @property
    def scale(self) -> TensorDictBase:
        """What each in-key is divided by, float64."""
        return self._by_key(lambda held: loc_and_scale(held, self.eps, held.dtype)[1])

    @property
    def count(self) -> TensorDictBase:
        """How many values each in-key has seen, weighed by ``decay``, float64."""
        return self._by_key(lambda held: held[2].reshape(-1)[0].clone())

    # Freezing and copies

    @property
    def frozen(self) -> bool:
        """Whether the statistics stay as they are."""
        return self._frozen

    def freeze(self) -> Self:
        """Keep the statistics as they are from now on; returns this same transform."""
        self._frozen = True
        return self

    def unfreeze(self) -> Self:
        """Let values count again; returns this same transform."""
        self._frozen = False
        return self

    def frozen_copy(self) -> Self:
        """A frozen transform with statistics of its own, equal to those of now."""
        copied = self.clone()
        with self.lock or nullcontext():
            for name in self._names.values():
                held = self._buffers[name]
                copied._buffers[name] = None if held is None else held.clone()
        copied.lock = None
        return copied.freeze()

    def _take_lock(self, lock: Lock) -> None:
        """Use a lock shared by all who share these statistics, unless there is one."""
        if self.lock is None:
            self.lock = lock

    def __getstate__(self) -> dict[str, Any]:
        # A copy has its own statistics, so it needs no lock, which could not be pickled.
        return {**super().__getstate__(), "lock": None}

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        """Take over statistics also where there are none yet."""
        for name in self._names.values():
            found = state_dict.get(prefix + name)
            if found is not None and self._buffers[name] is None:
                self._buffers[name] = torch.empty_like(found)
        with self.lock or nullcontext():
            super()._load_from_state_dict(state_dict, prefix, *args)

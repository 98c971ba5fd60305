"""Normalise by running statistics, which several envs may share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any, cast

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from tdx.core.transforms import Compose, TimeBehaviour
from tdx.core.transforms.chunk import Chunk, TimeForm
from tdx.core.transforms.key_pairs import flat_pairs, missing_key, output_keys
from tdx.core.transforms.moments import add_values, loc_and_scale, moments_over_time, no_moments
from tdx.core.transforms.running_statistics import Lock, RunningStatistics
from tdx.core.transforms.scan import reset_rows
from tdx.core.transforms.transform import Entries, RowStep
from tdx.errors import ArgumentError, ChainError, KeyNotFoundError, Where
from tdx.keys import NestedKey, normalize_key
from tdx.specs import Composite, TensorSpec, Unbounded
from tdx.tensordicts import read, write
from tdx.transforms.observation.observation_norm import ObservationNorm


class VecNorm(RunningStatistics):
    """Map values to ``(value - mean) / deviation``, by statistics of all values seen so far.

    Every value counts once: with B envs a step counts B, and a reset as many as it resets.
    Statistics run on over the ends of episodes. In eval mode, or once frozen, they stay as they
    are. They are buffers, so ``state_dict`` has them, and the envs that one ``EnvCreator`` makes
    share them, in whatever process they are. Applied to stored data, the statistics take in all
    of it.

    Args:
        in_keys: the entries read; ``observation`` and ``reward`` by default.
        out_keys: the keys written; the in-keys by default.
        shared_td: statistics to use and update in place, from
            :meth:`build_td_for_shared_vecnorm`; own ones by default.
        lock: held while statistics are updated or read. An ``EnvCreator`` gives one by itself.
        decay: what earlier values weigh, after each update, relative to before; 1 weighs all
            values the same.
        eps: a variance below this counts as this.
        shapes: the shape of each entry without batch dims; by default what is beyond the batch.

    Raises:
        ArgumentError: ``decay`` is not in (0, 1], ``eps`` not above 0, or the numbers of keys
            and shapes differ.
        KeyNotFoundError: the env has no such entry (when its specs are computed).
        ChainError: the statistics are there already, for entries of another shape.

    Example:
        >>> from tdx import GymEnv, TransformedEnv, VecNorm
        >>> env = TransformedEnv(GymEnv("Pendulum-v1"), VecNorm(["observation"], decay=1.0))
        >>> rollout = env.rollout(100)
        >>> env.transform.count["observation"]
        tensor(101., dtype=torch.float64)
        >>> env.transform.to_observation_norm().loc.shape
        torch.Size([3])
    """

    _is_verified = True

    time_behaviour = TimeBehaviour.SCAN
    default_in_keys = ("observation", "reward")

    def __init__(
        self,
        in_keys: Sequence[NestedKey] | None = None,
        out_keys: Sequence[NestedKey] | None = None,
        shared_td: TensorDictBase | None = None,
        lock: Lock | None = None,
        decay: float = 0.9999,
        eps: float = 1e-4,
        shapes: Sequence[torch.Size | Sequence[int]] | None = None,
    ) -> None:
        super().__init__(in_keys, out_keys)
        self.decay, self.eps = _checked(decay, eps)
        self.lock = lock
        self._dtypes: dict[NestedKey, torch.dtype] = {}
        if shapes is not None and len(shapes) != len(self.in_keys):
            raise ArgumentError(
                f"{len(shapes)} shapes for {len(self.in_keys)} in-keys", hint="give one for each"
            )
        for index, (key, name) in enumerate(self._names.items()):
            given = None if shared_td is None else shared_td.get(key, None)
            if shared_td is not None and given is None:
                raise missing_key(key, _leaf_keys(shared_td), "shared_td")
            if given is None and shapes is not None:
                given = no_moments(torch.Size(shapes[index]), None)
            self._buffers[name] = given

    @staticmethod
    def build_td_for_shared_vecnorm(
        env: Any, keys: Sequence[NestedKey] | None = None
    ) -> TensorDictBase:
        """Empty statistics in shared memory, for the ``shared_td`` of several instances.

        Args:
            env: the env before the transform.
            keys: the entries to normalise; ``observation`` and ``reward`` by default.

        Raises:
            KeyNotFoundError: the env has no such entry.
        """
        made = TensorDict({})
        for key in map(normalize_key, VecNorm.default_in_keys if keys is None else keys):
            spec = _spec_of(env.output_spec, key)
            made.set(key, no_moments(spec.shape[env.ndim :], spec.device))
        return made.share_memory_()

    # Specs

    def _bind(self, input_spec: Composite, output_spec: Composite) -> None:
        for key, name in self._names.items():
            if self._missing_tolerance and not _has(output_spec, key):
                continue
            spec = _spec_of(output_spec, key)
            self._dtypes[key] = _float_dtype(spec.dtype)
            shape = spec.shape[output_spec.ndim :]
            self._require(key, name, shape, spec.device)

    def _transform_spec(self, spec: Any) -> TensorSpec:
        return Unbounded(shape=spec.shape, dtype=_float_dtype(spec.dtype), device=spec.device)

    # Data

    def _normalised(self, key: NestedKey, value: Tensor, rows: Tensor | None = None) -> Tensor:
        """One entry ``[*B, ...]`` normalised, after its statistics took in its rows."""
        statistics = self._buffers[self._names[key]]
        assert statistics is not None
        with self.lock or nullcontext():
            if self.training and not self._frozen:
                add_values(statistics, value, self.decay, rows)
            now = statistics.clone()
        loc, scale = loc_and_scale(now, self.eps, _float_dtype(value.dtype))
        return (value - loc) / scale

    def _call(self, next_tensordict: TensorDictBase) -> TensorDictBase:
        for in_key, out_key in self._pairs:
            value = read(next_tensordict, in_key)
            if value is not None:
                self._require_for(in_key, value, next_tensordict.ndim)
                write(next_tensordict, out_key, self._normalised(in_key, value))
            elif not self._missing_tolerance:
                raise self._missing(in_key, next_tensordict)
        return next_tensordict

    def _row_step(self) -> RowStep | None:
        pairs = flat_pairs(self._pairs)
        made = all(self._buffers[name] is not None for name in self._names.values())
        if pairs is None or not made or self._missing_tolerance:
            return None

        def step(tensordict: Entries, fields: dict[str, Any]) -> None:
            for in_key, out_key in pairs:
                value = fields.get(in_key)
                if value is None:
                    raise self._missing(in_key, fields)
                fields[out_key] = self._normalised(in_key, value)

        return step

    def _time_form(self) -> TimeForm | None:
        made = all(self._buffers[name] is not None for name in self._names.values())
        if not made or self._missing_tolerance or self.lock is not None:
            return None  # With a lock the statistics may move between two steps.
        reads, writes = tuple(self.in_keys), tuple(self.out_keys)
        return TimeForm(self._normalise_chunk, reads, writes, scan=True)

    def _normalise_chunk(self, chunk: Chunk) -> None:
        for in_key, out_key in self._pairs:
            steps, resets = chunk.steps.get(in_key), chunk.resets.get(in_key)
            if steps is None:
                raise self._missing(in_key, chunk.steps)
            statistics = self._buffers[self._names[in_key]]
            assert statistics is not None
            if not self.training or self._frozen:
                chunk.map(in_key, out_key, self._fixed(statistics, steps.dtype))
                continue
            rows = None if resets is None else chunk.reset_rows(in_key, resets)
            moments = moments_over_time(statistics, steps, resets, rows, chunk.times, self.decay)
            dtype = _float_dtype(steps.dtype)
            for columns, values, known in zip(
                (chunk.steps, chunk.resets), (steps, resets), moments, strict=True
            ):
                if values is not None and known is not None:
                    # [3, T, ...]: the statistics at each step, with ones for the batch dims.
                    shape = (3, len(values), *[1] * (values.ndim - known.ndim + 1))
                    wide = known.transpose(0, 1).reshape(*shape, *known.shape[2:])
                    loc, scale = loc_and_scale(wide, self.eps, dtype)
                    columns[out_key] = (values - loc) / scale

    def _fixed(self, statistics: Tensor, dtype: torch.dtype) -> Callable[[Tensor], Tensor]:
        loc, scale = loc_and_scale(statistics, self.eps, _float_dtype(dtype))
        return lambda value: (value - loc) / scale

    def _reset(
        self, tensordict: TensorDictBase | None, tensordict_reset: TensorDictBase
    ) -> TensorDictBase:
        for in_key, out_key in self._pairs:
            value = read(tensordict_reset, in_key)
            if value is not None:
                rows = reset_rows(tensordict, in_key, value)
                self._require_for(in_key, value, tensordict_reset.ndim)
                write(tensordict_reset, out_key, self._normalised(in_key, value, rows))
        return tensordict_reset

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Normalise stored data ``[*B]``, in place; in train mode all of it counts."""
        return self._call(tensordict)

    def denorm(self, tensordict: TensorDictBase) -> TensorDictBase:
        """The values before, from normalised ones and the statistics of now, in place.

        Args:
            tensordict: ``[*B]``; holds out-keys, and gets the in-keys. Those under ``next`` are
                mapped too.
        """
        following = read(tensordict, "next")
        for level in (tensordict, following):
            for in_key, out_key in () if level is None else self._pairs:
                value, known = read(level, out_key), self._buffers[self._names[in_key]]
                if value is not None and known is not None:
                    loc, scale = loc_and_scale(known, self.eps, value.dtype)
                    level.set(in_key, value * scale + loc)
        return tensordict

    @property
    def standard_normal(self) -> bool:
        """Always true: the map is ``(value - loc) / scale``."""
        return True

    def to_observation_norm(self) -> ObservationNorm | Compose:
        """A fixed transform that does what this one does with the statistics of now.

        Returns:
            an ``ObservationNorm``; one for each in-key in a ``Compose`` if there are several.

        Raises:
            ChainError: there are no statistics yet.
        """
        made = []
        for in_key, out_key in self._pairs:
            held = self._buffers[self._names[in_key]]
            if held is None:
                raise ChainError(
                    "VecNorm has seen no values yet",
                    hint="use it in its env first",
                    where=Where(key=in_key),
                )
            dtype = self._dtypes.get(in_key, torch.get_default_dtype())
            loc, scale = loc_and_scale(held, self.eps, dtype)
            made.append(
                ObservationNorm(loc, scale, [in_key], [out_key], standard_normal=True, eps=0.0)
            )
        return made[0] if len(made) == 1 else Compose(*made)

    def __repr__(self) -> str:
        state = ", frozen" if self._frozen else ""
        return f"VecNorm(decay={self.decay:g}, eps={self.eps:g}, keys={self.in_keys}{state})"


def _checked(decay: float, eps: float) -> tuple[float, float]:
    for name, value, high in (("decay", decay, 1.0), ("eps", eps, float("inf"))):
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not number or not 0 < value <= high:
            most = " and at most 1" if high == 1 else ""
            raise ArgumentError(
                f"{name} must be a number above 0{most}, got {value!r}",
                hint="for example decay=0.9999 and eps=1e-4",
            )
    return float(decay), float(eps)


def _leaf_keys(tensordict: Mapping[Any, Any] | TensorDictBase) -> list[NestedKey]:
    return [normalize_key(key) for key in cast(Any, tensordict).keys(True, True)]


def _float_dtype(dtype: torch.dtype) -> torch.dtype:
    return dtype if dtype.is_floating_point else torch.get_default_dtype()


def _has(output_spec: Composite, key: NestedKey) -> bool:
    return any(part.get(key, None) is not None for part in output_spec.values())


def _spec_of(output_spec: Composite, key: NestedKey) -> Any:
    """The spec of an entry.

    Raises:
        KeyNotFoundError: it is in no part of the output spec.
    """
    for part in output_spec.values():
        spec = part.get(key, None)
        if spec is not None:
            return spec
    error: KeyNotFoundError = missing_key(key, output_keys(output_spec), "the env at this stage")
    raise error

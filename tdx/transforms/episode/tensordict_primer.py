"""Add entries at reset and carry them from step to step."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from typing import Any, Self

import torch
from tensordict import TensorDictBase
from torch import Tensor

from tdx.core.counter_based import draw, new_streams
from tdx.core.envs.done_flags import expand_mask
from tdx.core.envs.env_specs import done_groups
from tdx.core.transforms import TimeBehavior, Transform
from tdx.core.transforms.kernels import Chunk, ChunkKernel
from tdx.core.transforms.scan import init_reset_states
from tdx.core.transforms.spec_maps import broadcasts_to, with_entries
from tdx.foundation.accelerators import target_device
from tdx.foundation.errors import ArgumentError, ChainError, Where
from tdx.foundation.keys import NestedKey, format_key, normalize_key, sibling_key
from tdx.foundation.tensordicts import read, write
from tdx.specs import Composite, NonTensor, TensorSpec
from tdx.specs.arguments import where
from tdx.specs.composite import spec_leaves

DefaultValue = (
    float | Tensor | Callable[..., Any] | Mapping[NestedKey, float | Callable[[], Any]] | None
)


class TensorDictPrimer(Transform):
    """Write entries at every reset, and carry each into ``next`` unless it is already present.

    A spec without batch dims is expanded to the env's batch size; the shape of a ``Composite``
    defines which of its leading dims are batch dims. Without an env, ``forward`` writes the
    entries into any TensorDict.

    Args:
        primers: Specs of the entries, by key.
        random: Draw the values from the specs.
        default_value: Value if not random: a number for all elements, a function that returns
            the tensor of an entry, or a dict with one of these for each key. By default zero, or
            the nearest valid value.
        reset_key: Reset mask to follow; required if the env has several.
        expand_specs: Expand specs to the env's batch size, the default; otherwise they must start
            with it.
        single_default_value: ``default_value`` is one function for all entries. It returns a
            TensorDict with one row per row that is reset; its argument ``reset``, if any, is the
            mask of these rows, bool ``[*B]``.
        call_before_env_reset: Write the entries into the input of the env's reset.
        **kwargs: Specs by key, instead of ``primers``.

    Raises:
        ArgumentError: A primer is not a spec, both ``primers`` and keyword arguments are given,
            or the default values do not fit.
        ChainError: A spec cannot be expanded to the env's batch size, or the reset mask is
            ambiguous (when its specs are computed).

    Example:
        >>> from tdx import GymEnv, SerialEnv, TensorDictPrimer, TransformedEnv, Unbounded
        >>> env = TransformedEnv(GymEnv("Pendulum-v1"), TensorDictPrimer(hidden=Unbounded(2)))
        >>> env.reset()["hidden"]
        tensor([0., 0.])
        >>> env.rollout(3)["next", "hidden"].shape
        torch.Size([3, 2])
    """

    _is_verified = True

    time_behavior = TimeBehavior.CONTROL
    episode_memory = ("_streams",)
    _streams: dict[NestedKey, Tensor]

    def __init__(
        self,
        primers: Mapping[NestedKey, TensorSpec] | Composite | None = None,
        random: bool | None = None,
        default_value: DefaultValue = None,
        reset_key: NestedKey | None = None,
        expand_specs: bool | None = None,
        single_default_value: bool = False,
        call_before_env_reset: bool = False,
        **kwargs: TensorSpec,
    ) -> None:
        super().__init__()
        self._primers = self._given = _to_composite(primers, kwargs)
        self.random = random
        self.expand_specs = expand_specs
        self.single_default_value = single_default_value
        self.call_before_env_reset = call_before_env_reset
        self.default_value = _check_default(
            default_value, [normalize_key(key) for key in self._given.keys(True, True)], random
        )
        if single_default_value and not callable(self.default_value):
            raise ArgumentError(
                "single_default_value=True requires a function as default_value",
                hint="pass a function that returns a TensorDict of all entries",
            )
        self.reset_key = None if reset_key is None else normalize_key(reset_key)
        self._mask_key: NestedKey = self.reset_key or "_reset"
        if self._varies or call_before_env_reset:
            self.why_not_exported = (
                "its values are drawn, computed by a function or read by the env"
            )
        self._primed: dict[NestedKey, Any] = {}
        self._batch_size: torch.Size | None = None

    # Specs

    @property
    def primers(self) -> Composite:
        """Specs of the entries; in an env, with its batch dims and on its device."""
        return self._primers

    @primers.setter
    def primers(self, value: Mapping[NestedKey, TensorSpec] | Composite) -> None:
        self._primers = self._given = _to_composite(value, {})

    def _bind(self, input_spec: Composite, output_spec: Composite) -> None:
        self._mask_key = self._find_mask(output_spec["full_done_spec"])
        self._batch_size = output_spec.shape
        self._primers = self._expand(output_spec.shape, output_spec.device)

    def _find_mask(self, full_done_spec: Composite) -> NestedKey:
        known = [group.reset_key for group in done_groups(full_done_spec)]
        listed = ", ".join(repr(format_key(key)) for key in known)
        if self.reset_key is None:
            if len(known) == 1:
                return known[0]
            raise ChainError(
                f"the env has {len(known)} reset masks ({listed})",
                hint="pass the one to follow as reset_key",
            )
        if self.reset_key not in known:
            raise ChainError(
                f"the env has no reset mask {format_key(self.reset_key)!r}",
                hint=f"existing: {listed}",
            )
        return self.reset_key

    def _expand(self, batch_size: torch.Size, device: torch.device | None) -> Composite:
        given = self._given if device is None else self._given.clone().to(device)
        if given.shape[: len(batch_size)] == batch_size:
            return given
        if self.expand_specs is not False:
            if not broadcasts_to(given.shape, batch_size):
                raise ChainError(
                    f"the primer's batch size {tuple(given.shape)} cannot be expanded to the "
                    f"env's, {tuple(batch_size)}",
                    hint="pass the spec without batch dims, and not in a Composite with a shape",
                )
            return given.expand(*batch_size)
        for key, spec in given.items(True, True):
            if spec.shape[: len(batch_size)] != batch_size:
                raise ChainError(
                    f"the primer's shape {tuple(spec.shape)} does not start with the env's batch "
                    f"size {tuple(batch_size)}",
                    hint="remove expand_specs=False, and pass the spec without batch dims",
                    where=Where(key=normalize_key(key)),
                )
        return given

    def transform_observation_spec(self, observation_spec: Composite) -> Composite:
        """Return the observation spec with the entries."""
        return with_entries(observation_spec, spec_leaves(self.primers))

    def transform_state_spec(self, state_spec: Composite) -> Composite:
        """Return the state spec with the entries, which a step reads."""
        return with_entries(state_spec, spec_leaves(self.primers))

    # Values

    def _new_values(
        self, batch_size: torch.Size, device: torch.device | None, mask: Tensor | None = None
    ) -> dict[NestedKey, Any]:
        """Return new values for all rows, ``[*B, ...]`` each, of which ``mask`` are needed."""
        primers = self.primers
        if batch_size != self._batch_size:
            primers = self._expand(batch_size, device)
        leaves = spec_leaves(primers)
        if self.single_default_value:
            return self._call_default(leaves, batch_size, mask)
        if self.random:
            return self._draw_values(leaves, batch_size, mask)
        values: dict[NestedKey, Any] = {}
        for key, spec in leaves.items():
            default = self.default_value
            if isinstance(default, Mapping):
                default = default[key]
            if default is None or isinstance(spec, NonTensor):
                values[key] = spec.project(spec.zero())
            else:
                value = default() if callable(default) else default
                values[key] = _broadcast(value, spec, key)
        return values

    def _draw_values(
        self, leaves: dict[NestedKey, TensorSpec], batch_size: torch.Size, mask: Tensor | None
    ) -> dict[NestedKey, Any]:
        """Draw new values for all rows, of which ``mask`` are needed.

        An accelerator resets by mask after every step, mostly no rows. A row draws from its own
        stream, so that it gets the same values there as on the host.
        """
        # The parts of a stack may differ in shape.
        sizes = [
            0 if -1 in spec.shape else math.prod(spec.shape[len(batch_size) :])
            for spec in leaves.values()
        ]
        streams = self._streams.get(self._mask_key)
        rows = None if mask is None else mask.reshape(*batch_size, -1).any(-1)
        if rows is None or streams is None or streams.shape[:-1] != batch_size:
            streams = new_streams(batch_size, self.primers.device)
        numbers, self._streams[self._mask_key] = draw(streams, sum(sizes), rows)
        values: dict[NestedKey, Any] = {}
        for part, (key, spec) in zip(numbers.split(sizes), leaves.items(), strict=True):
            value = None
            if -1 not in spec.shape:
                value = spec.rand_at(part.movedim(0, -1).reshape(spec.shape).contiguous())
            values[key] = spec.rand() if value is None else value
        return values

    def _call_default(
        self, leaves: dict[NestedKey, TensorSpec], batch_size: torch.Size, mask: Tensor | None
    ) -> dict[NestedKey, Any]:
        assert callable(self.default_value)
        rows = torch.ones(batch_size, dtype=torch.bool)
        rows = rows if mask is None else mask.reshape(*batch_size, -1).any(-1)
        takes_reset = "reset" in inspect.signature(self.default_value).parameters
        result = self.default_value(reset=rows) if takes_reset else self.default_value()
        values = {}
        for key, spec in leaves.items():
            value = result.get(key, None)
            if value is None:
                raise ArgumentError(
                    f"default_value returned no {format_key(key)!r}",
                    where=Where(key=key),
                    hint="return a TensorDict with an entry for each primer",
                )
            part = (int(rows.sum()), *spec.shape[len(batch_size) :])
            if batch_size and value.shape != spec.shape and value.shape == part:
                values[key] = spec.zero()
                values[key][rows] = value.to(values[key])
            else:
                values[key] = _broadcast(value, spec, key)
        return values

    def _reset_env_preprocess(self, tensordict: TensorDictBase) -> TensorDictBase:
        if self.call_before_env_reset:
            self._primed = self._write_new(tensordict, tensordict)
        return tensordict

    def _reset(
        self, tensordict: TensorDictBase | None, tensordict_reset: TensorDictBase
    ) -> TensorDictBase:
        if self.call_before_env_reset:
            for key, value in self._primed.items():
                if read(tensordict_reset, key) is None:
                    write(tensordict_reset, key, value)
            self._primed = {}
        else:
            self._write_new(tensordict_reset, tensordict)
        return tensordict_reset

    def _write_new(
        self, target: TensorDictBase, given: TensorDictBase | None
    ) -> dict[NestedKey, Any]:
        """Write new values into the rows that are reset; the others keep those of ``given``."""
        mask = None if given is None else read(given, self._mask_key)
        values = self._new_values(target.batch_size, target.device, mask)
        for key, value in values.items():
            before = None if mask is None or given is None else read(given, key)
            if mask is not None and isinstance(before, Tensor):
                value = values[key] = where(expand_mask(mask, value, target.ndim), value, before)
            write(target, key, value)
        return values

    def _step(self, tensordict: TensorDictBase, next_tensordict: TensorDictBase) -> TensorDictBase:
        new = None
        for key in spec_leaves(self.primers):
            if read(next_tensordict, key) is None:
                value = read(tensordict, key)
                if value is None:
                    if new is None:
                        new = self._new_values(next_tensordict.batch_size, next_tensordict.device)
                    value = new[key]
                write(next_tensordict, key, value)
        return next_tensordict

    @property
    def _varies(self) -> bool:
        """True if two resets may write different values."""
        default = self.default_value
        values = default.values() if isinstance(default, Mapping) else (default,)
        return bool(self.random) or any(map(callable, values))

    def make_chunk_kernel(self) -> ChunkKernel | None:
        if self._varies or self.call_before_env_reset or self._batch_size is None:
            return None
        keys = tuple(spec_leaves(self.primers))
        return ChunkKernel(self._run_chunk, writes=keys, root=keys, scan=True)

    def _run_chunk(self, chunk: Chunk) -> None:
        follows = sibling_key(self._mask_key, "done")
        for key, initial in self._new_values(chunk.batch_size, None).items():
            state, column = chunk.first.get(key, initial), []
            rows = init_reset_states(chunk, (key, follows), initial)
            if key in chunk.steps:
                continue
            for start, stop, reset in chunk.segments():
                if reset is not None and rows is not None:
                    state = chunk.resets[key][reset] = initial.where(rows[reset], state)
                column.append(state.expand(stop - start, *state.shape))
            chunk.steps[key] = torch.cat(column)

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Write new values into any TensorDict, in place."""
        for key, value in self._new_values(tensordict.batch_size, tensordict.device).items():
            tensordict.set(key, value)
        return tensordict

    def to(self, *args: Any, **kwargs: Any) -> Self:
        """Move the values for use without an env to a device."""
        device = target_device(*args, **kwargs)
        if device is not None:
            self._given, self._primers = self._given.to(device), self._primers.to(device)
        return super().to(*args, **kwargs)

    def __repr__(self) -> str:
        return (
            f"TensorDictPrimer(primers={self.primers}, default_value={self.default_value!r}, "
            f"random={self.random})"
        )


def _to_composite(
    primers: Mapping[NestedKey, TensorSpec] | Composite | None, named: Mapping[str, TensorSpec]
) -> Composite:
    if primers is not None and named:
        raise ArgumentError(
            f"primers and the keyword arguments {', '.join(named)} are both given",
            hint="pass the specs in one of the two ways",
        )
    if isinstance(primers, Composite):
        return primers.clone()
    given = named if primers is None else primers
    if not isinstance(given, Mapping):
        raise ArgumentError(
            f"primers must map keys to specs, got {type(given).__name__}",
            hint='for example {"hidden": Unbounded(2)}',
        )
    result = Composite()
    for key, spec in given.items():
        if not isinstance(spec, TensorSpec):
            raise ArgumentError(
                f"the primer {format_key(key)!r} must be a spec, got {type(spec).__name__}",
                hint="for example Unbounded(2)",
            )
        result[normalize_key(key)] = spec.clone()
    return result


def _check_default(value: DefaultValue, keys: list[NestedKey], random: bool | None) -> Any:
    if random and isinstance(value, (int, float)) and value == 0:
        return None
    if random and value is not None:
        raise ArgumentError("random and default_value are both given", hint="remove one of the two")
    if not isinstance(value, Mapping):
        return value
    by_key = {normalize_key(key): each for key, each in value.items()}
    unmatched = [format_key(key) for key in by_key.keys() ^ set(keys)]
    if unmatched:
        raise ArgumentError(
            f"default_value and primers differ in {', '.join(sorted(unmatched))}",
            hint="pass one default value for each primer",
        )
    return by_key


def _broadcast(value: Any, spec: TensorSpec, key: NestedKey) -> Tensor:
    """Return a value in the dtype and shape of a spec; a number is repeated."""
    try:
        if isinstance(value, int | float):
            # Filled on the device, for which the host does not wait, as it does for a copy.
            return torch.full(spec.shape, value, dtype=spec.dtype, device=spec.device)
        tensor = torch.as_tensor(value, dtype=spec.dtype, device=spec.device)
        return tensor.expand(spec.shape).clone()
    except (RuntimeError, TypeError, ValueError):
        what = f"shape {tuple(value.shape)}" if isinstance(value, Tensor) else repr(value)
        raise ArgumentError(
            f"the default value for {format_key(key)!r} is {what}, its spec has shape "
            f"{tuple(spec.shape)}",
            where=Where(key=key),
            hint="pass a number, or a tensor with the shape of the spec",
        ) from None

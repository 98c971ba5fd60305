"""The base class of every transform."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from tensordict import TensorDictBase, is_tensor_collection
from tensordict.nn import dispatch

from tdx.core.transforms.chain_member import ChainMember
from tdx.core.transforms.images import LinearImage
from tdx.core.transforms.kernels import (
    ArrayForm,
    ArrayKernel,
    Chunk,
    ChunkKernel,
    DictStep,
    EntryMapping,
    StepLimit,
    TensorDictEntries,
    TimeBehavior,
    are_flat,
    call_with_tensors,
    map_entries,
)
from tdx.core.transforms.spec_maps import (
    KeyPairs,
    map_leaves,
    map_parts,
    missing_key_error,
    normalize_keys,
    pair_keys,
    require_keys,
    require_uniform,
    unlocked_copy,
)
from tdx.foundation.errors import ArgumentError, KeyNotFoundError
from tdx.foundation.keys import NestedKey
from tdx.foundation.tensordicts import read
from tdx.specs import Composite, TensorSpec

_DATA_HOOKS = ("_call", "_step", "_reset", "forward")


class Transform(ChainMember):
    """Maps the output of an env, its input, or both. Also works without an env.

    A subclass that maps tensor by tensor implements :meth:`_apply_transform` (and
    :meth:`_transform_spec` if shape, dtype or bounds change), or
    :meth:`_inv_apply_transform` and :meth:`_inv_transform_spec` for the env's input. A subclass
    that needs whole TensorDicts implements :meth:`_call`, :meth:`_step`, :meth:`_reset` or
    :meth:`_inv_call`.

    Args:
        in_keys: Entries of the env's output to read.
        out_keys: Keys to write, one per in-key; any number if the subclass implements a hook for
            whole TensorDicts. ``None``: the in-keys.
        in_keys_inv: Entries of the env's input to write.
        out_keys_inv: Keys that the policy writes, one per inverse in-key. ``None``:
            ``in_keys_inv``.

    Raises:
        ArgumentError: The numbers of keys differ, or an element is not a key.

    Example:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> class Double(Transform):
        ...     def _apply_transform(self, tensor):
        ...         return tensor * 2
        >>> Double(in_keys=["reward"])(TensorDict(reward=torch.ones(1)))["reward"]
        tensor([2.])
        >>> Double(in_keys=["reward"])(reward=torch.ones(1))
        tensor([2.])
    """

    time_behavior: TimeBehavior = TimeBehavior.CONTROL
    """Which steps the output depends on. An instance may differ from its class."""

    default_in_keys: ClassVar[tuple[NestedKey, ...]] = ()
    """In-keys if none are given."""

    _is_verified: ClassVar[bool] = False
    """True if the contract tests cover the class; see :func:`tdx.core.chain.declares`.

    They prove that it maps a block of steps like the single steps, and writes no input in place.
    """

    steps_env: ClassVar[bool] = False
    """True if its hooks step or reset the env inside."""

    skips_steps: bool = False
    """True if its inverse writes ``_step``: the rows of the env's input to step, bool ``[*B]``."""

    why_not_exported: str | None = None
    """Why ``tdx export-chain`` refuses it, such as a clock that it reads; ``None``: it does not.

    An instance may differ from its class.
    """

    needs_declared_input: ClassVar[bool] = False
    """True if the batched envs of its library pass on actions and declared state only."""

    _requires_keys: ClassVar[bool] = False
    """True if an env must have all in-keys, even if ``_call`` or ``_inv_call`` is overridden."""

    _joins: ClassVar[bool] = False
    """True if all in-keys are mapped to a single out-key."""

    def __init__(
        self,
        in_keys: Sequence[NestedKey] | None = None,
        out_keys: Sequence[NestedKey] | None = None,
        in_keys_inv: Sequence[NestedKey] | None = None,
        out_keys_inv: Sequence[NestedKey] | None = None,
    ) -> None:
        super().__init__()
        self._missing_tolerance = False
        in_keys = self.default_in_keys if in_keys is None else in_keys
        self._set_keys(in_keys, in_keys if out_keys is None else out_keys)
        self._set_inverse_keys(in_keys_inv, in_keys_inv if out_keys_inv is None else out_keys_inv)

    # Keys

    def _set_keys(
        self, in_keys: Sequence[NestedKey] | None, out_keys: Sequence[NestedKey] | None
    ) -> None:
        self._in_keys = normalize_keys(in_keys, "in_keys")
        self._out_keys = normalize_keys(out_keys, "out_keys")
        self._pairs: KeyPairs = ()
        own_hooks = not self._is_verified and self._overrides(*_DATA_HOOKS)
        joined = self._joins or (len(self._in_keys) != len(self._out_keys) and own_hooks)
        if not joined:
            self._pairs = pair_keys(self._in_keys, self._out_keys, "in_keys and out_keys")

    def _set_inverse_keys(
        self, in_keys_inv: Sequence[NestedKey] | None, out_keys_inv: Sequence[NestedKey] | None
    ) -> None:
        self._in_keys_inv = normalize_keys(in_keys_inv, "in_keys_inv")
        self._out_keys_inv = normalize_keys(out_keys_inv, "out_keys_inv")
        keys = self._in_keys_inv, self._out_keys_inv
        self._inverse_pairs = pair_keys(*keys, "in_keys_inv and out_keys_inv")

    def _on_keys_assigned(self) -> None:
        """Keep keys that were assigned instead of deriving them from the specs."""

    @property
    def in_keys(self) -> list[NestedKey]:
        """Entries of the env's output to read."""
        return self._in_keys

    @in_keys.setter
    def in_keys(self, value: Sequence[NestedKey] | None) -> None:
        same = self._in_keys == self._out_keys
        self._set_keys(value, value if same else self._out_keys)
        self._on_keys_assigned()

    @property
    def out_keys(self) -> list[NestedKey]:
        """Keys to write, one per in-key."""
        return self._out_keys

    @out_keys.setter
    def out_keys(self, value: Sequence[NestedKey] | None) -> None:
        self._set_keys(self._in_keys, value)
        self._on_keys_assigned()

    @property
    def in_keys_inv(self) -> list[NestedKey]:
        """Entries of the env's input to write."""
        return self._in_keys_inv

    @in_keys_inv.setter
    def in_keys_inv(self, value: Sequence[NestedKey] | None) -> None:
        same = self._in_keys_inv == self._out_keys_inv
        self._set_inverse_keys(value, value if same else self._out_keys_inv)
        self._on_keys_assigned()

    @property
    def out_keys_inv(self) -> list[NestedKey]:
        """Keys that the policy writes, one per inverse in-key."""
        return self._out_keys_inv

    @out_keys_inv.setter
    def out_keys_inv(self, value: Sequence[NestedKey] | None) -> None:
        self._set_inverse_keys(self._in_keys_inv, value)
        self._on_keys_assigned()

    @property
    def written_keys(self) -> tuple[NestedKey, ...]:
        """Keys that a step may write without changing a spec; by default the out-keys."""
        return tuple(self.out_keys)

    @property
    def exposed_keys(self) -> tuple[NestedKey, ...]:
        """Keys written by the inverse that a step also returns to its caller."""
        return ()

    @property
    def missing_tolerance(self) -> bool:
        """True if missing in-keys are skipped instead of raising an error."""
        return self._missing_tolerance

    def set_missing_tolerance(self, mode: bool = True) -> None:
        """Set whether missing in-keys are skipped."""
        self._missing_tolerance = mode
        self.notify_changed()

    @property
    def invertible(self) -> bool:
        """True if the transform changes the env's input."""
        return bool(self._inverse_pairs) or self._overrides("_inv_call")

    def _overrides(self, *hooks: str) -> bool:
        return any(getattr(type(self), hook) is not getattr(Transform, hook) for hook in hooks)

    def _missing_key(
        self, key: NestedKey, entries: TensorDictBase | EntryMapping
    ) -> KeyNotFoundError:
        if isinstance(entries, TensorDictBase):
            entries = TensorDictEntries(entries)
        error = missing_key_error(key, list(entries.keys()), "the TensorDict")
        return error.at(transform=type(self).__name__)

    def _entry(self, tensordict: TensorDictBase | dict[Any, Any], key: NestedKey) -> Any:
        """Return an entry of a TensorDict or of the columns of a chunk."""
        value = tensordict.get(key) if isinstance(tensordict, dict) else read(tensordict, key)
        if value is None:
            raise self._missing_key(key, tensordict)
        return value

    # Kernels

    def _apply_transform(self, tensor: Any) -> Any:
        """Map one tensor ``[*B, ...]`` of the env's output."""
        raise NotImplementedError(f"{type(self).__name__} implements no _apply_transform")

    def _inv_apply_transform(self, tensor: Any) -> Any:
        """Map one tensor ``[*B, ...]`` of the env's input; by default unchanged."""
        return tensor

    def linear_image(self, shape: tuple[int, int, int], dtype: torch.dtype) -> LinearImage | None:
        """Return :meth:`_apply_transform` of an image as a linear map, if it is one.

        Args:
            shape: Shape of one image without batch dims.
            dtype: Dtype of the image.
        """
        return None

    # Forms derived from the kernels. A form for dicts or chunks is ignored if a subclass overrides
    # a hook that it stands for below the class that defines the form.

    def _map_entries(self, entries: EntryMapping) -> None:
        """Map entries key by key, in place."""
        missing = None if self._missing_tolerance else self._missing_key
        map_entries(entries, self._pairs, self._apply_transform, missing)

    def _call(self, next_tensordict: TensorDictBase) -> TensorDictBase:
        """Map the env's output ``[*B]`` key by key, in place."""
        self._map_entries(TensorDictEntries(next_tensordict))
        return next_tensordict

    def _step(self, tensordict: TensorDictBase, next_tensordict: TensorDictBase) -> TensorDictBase:
        """Map the output of a step.

        Args:
            tensordict: Input of the step, ``[*B]``; read only.
            next_tensordict: Output of the step so far, ``[*B]``; written to.
        """
        return self._call(next_tensordict)

    def make_dict_step(self) -> DictStep | None:
        """Return :meth:`_step` as a function of plain dicts; ``None`` if it needs TensorDicts."""
        if not are_flat((*self._in_keys, *self._out_keys)):
            return None
        missing = None if self._missing_tolerance else self._missing_key
        pairs, kernel = self._pairs, self._apply_transform

        def dict_step(root: EntryMapping, fields: EntryMapping) -> None:
            map_entries(fields, pairs, kernel, missing)

        return dict_step

    def make_array_kernel(self, in_key: NestedKey, form: ArrayForm) -> ArrayKernel | None:
        """Return the step of one in-key for arrays of a form. ``None``: this form is missing."""
        return None

    def make_chunk_kernel(self) -> ChunkKernel | None:
        """Return the data hooks as a function of a chunk; ``None`` to run step by step."""
        if self.time_behavior is not TimeBehavior.POINTWISE:
            return None

        def run(chunk: Chunk) -> None:
            self._map_entries(chunk.steps)
            map_entries(chunk.resets, self._pairs, self._apply_transform)

        reads, writes = (tuple(pair[place] for pair in self._pairs) for place in (0, 1))
        return ChunkKernel(run, reads, writes)

    def step_limits(self) -> tuple[StepLimit, ...]:
        """Return the step limits of this stage, if it ends episodes only by counting steps."""
        return ()

    def _reset(
        self, tensordict: TensorDictBase | None, tensordict_reset: TensorDictBase
    ) -> TensorDictBase:
        """Map the output of a reset; with an own :meth:`_call` only if all in-keys are present.

        Args:
            tensordict: Input of the reset, ``[*B]``, with its ``_reset`` masks.
            tensordict_reset: Output of the reset so far, ``[*B]``; written to.
        """
        if not self._overrides("_call"):
            entries = TensorDictEntries(tensordict_reset)
            map_entries(entries, self._pairs, self._apply_transform)
            return tensordict_reset
        if self._in_keys and all(read(tensordict_reset, key) is not None for key in self._in_keys):
            return self._call(tensordict_reset)
        return tensordict_reset

    def _reset_env_preprocess(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Map the input of a reset for the env; missing entries are skipped."""
        return self.inv_present(tensordict)

    def _inv_call(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Map the env's input ``[*B]`` key by key, in place."""
        pairs = ((outer, inner) for inner, outer in self._inverse_pairs)
        missing = None if self._missing_tolerance else self._missing_key
        map_entries(TensorDictEntries(tensordict), pairs, self._inv_apply_transform, missing)
        return tensordict

    def inv_present(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Map the entries of the env's input ``[*B]`` that are present, in place."""
        if not self._overrides("_inv_call"):
            pairs = [(outer, inner) for inner, outer in self._inverse_pairs]
            map_entries(TensorDictEntries(tensordict), pairs, self._inv_apply_transform)
            return tensordict
        if not self.invertible or any(read(tensordict, key) is None for key in self._out_keys_inv):
            return tensordict
        return self._inv_call(tensordict)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call :meth:`forward` with a TensorDict, or with tensors by name or in key order."""
        if "tensordict" in kwargs or (args and is_tensor_collection(args[0])):
            return super().__call__(*args, **kwargs)
        if not args and not kwargs:
            raise ArgumentError("the call has no arguments", hint="pass a TensorDict")
        function = super().__call__
        return call_with_tensors(function, self.in_keys, self.out_keys, args, kwargs)

    @dispatch(source="in_keys", dest="out_keys")
    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Map stored data: apply :meth:`_apply_transform` to each in-key, in place.

        A replay buffer calls this in ``sample()``; an env never does. Takes keyword arguments
        instead of a TensorDict, named after the in-keys.

        Args:
            tensordict: Data of any shape ``[*B]`` or ``[*B, T]``.
        """
        for in_key, out_key in self._pairs:
            if self._missing_tolerance and read(tensordict, in_key) is None:
                continue
            tensordict.set(out_key, self._apply_transform(self._entry(tensordict, in_key)))
        return tensordict

    def inv(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Map the env's input in a shallow copy ``[*B]``."""
        self._bind_in_env()
        return self._inv_call(tensordict.clone(recurse=False))

    def init(self, tensordict: TensorDictBase) -> None:
        """Run what must happen once before the transform is used on this data."""

    # Specs

    def _bind(self, input_spec: Composite, output_spec: Composite) -> None:
        """Read from the upstream specs what the constructor left open, such as in-keys."""

    def _transform_spec(self, spec: Any) -> TensorSpec:
        """Return the spec of :meth:`_apply_transform` of a tensor of this spec."""
        return spec

    def _inv_transform_spec(self, spec: Any) -> TensorSpec:
        """Return the spec of the policy's tensor, given the spec of the env's tensor."""
        return spec

    def _map_spec(self, spec: Any) -> Any:
        """Map one part of the output spec, or the spec of a lone entry."""
        name = type(self).__name__ if self._overrides("_transform_spec") else None
        return map_leaves(spec, self._pairs, self._transform_spec, name)

    def _map_inverse_spec(self, spec: Any) -> Any:
        """Map one part of the input spec, or the spec of a lone entry."""
        name = type(self).__name__ if self._overrides("_transform_spec") else None
        return map_leaves(spec, self._inverse_pairs, self._inv_transform_spec, name, rename=True)

    def transform_observation_spec(self, observation_spec: Composite) -> Composite:
        """Return the observation spec after this transform."""
        return self._map_spec(observation_spec)

    def transform_reward_spec(self, reward_spec: Composite) -> Composite:
        """Return the reward spec after this transform."""
        return self._map_spec(reward_spec)

    def transform_done_spec(self, done_spec: Composite) -> Composite:
        """Return the spec of the done flags after this transform."""
        return self._map_spec(done_spec)

    def transform_action_spec(self, action_spec: Composite) -> Composite:
        """Return the action spec that the policy sees."""
        return self._map_inverse_spec(action_spec)

    def transform_state_spec(self, state_spec: Composite) -> Composite:
        """Return the state spec that the policy sees."""
        return self._map_inverse_spec(state_spec)

    def transform_output_spec(self, output_spec: Composite) -> Composite:
        """Return the output spec after this transform.

        Raises:
            KeyNotFoundError: An in-key is in no part of the spec.
        """
        self._check_in_keys(output_spec)
        hooks = {
            "full_observation_spec": self.transform_observation_spec,
            "full_reward_spec": self.transform_reward_spec,
            "full_done_spec": self.transform_done_spec,
        }
        return map_parts(output_spec, hooks, trusted="_is_verified" in vars(type(self)))

    def transform_input_spec(self, input_spec: Composite) -> Composite:
        """Return the input spec that the policy sees.

        Raises:
            KeyNotFoundError: An inverse in-key is in no part of the spec.
        """
        self._check_inverse_keys(input_spec)
        hooks = {
            "full_action_spec": self.transform_action_spec,
            "full_state_spec": self.transform_state_spec,
        }
        return map_parts(input_spec, hooks, trusted="_is_verified" in vars(type(self)))

    def _check_in_keys(self, output_spec: Composite) -> None:
        is_needed = self._requires_keys or not self._overrides("_call")
        if is_needed and not self._missing_tolerance:
            require_keys(output_spec, self._in_keys, "the env at this stage")

    def _check_inverse_keys(self, input_spec: Composite) -> None:
        is_needed = self._requires_keys or not self._overrides("_inv_call")
        if is_needed and not self._missing_tolerance:
            require_keys(input_spec, self._in_keys_inv, "the env's input at this stage")

    def transform_specs(
        self, input_spec: Composite, output_spec: Composite
    ) -> tuple[Composite, Composite]:
        """Bind the transform to the upstream specs and return both specs after it."""
        require_uniform(output_spec, self._in_keys)
        self._bind(input_spec, output_spec)
        if self._overrides("transform_input_spec"):
            input_spec = unlocked_copy(input_spec)
        if self._overrides("transform_output_spec"):
            output_spec = unlocked_copy(output_spec)
        return self.transform_input_spec(input_spec), self.transform_output_spec(output_spec)

    def close(self) -> None:
        """Release resources of the transform."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}(keys={self.in_keys or self.in_keys_inv})"

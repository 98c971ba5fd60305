"""The base class of every transform."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Self

import torch
from tensordict import TensorDictBase
from tensordict.nn import dispatch
from torch import nn

from tdx.errors import ChainError, KeyNotFoundError
from tdx.keys import NestedKey, normal_key
from tdx.specs import Composite, TensorSpec
from tdx.tensordicts import read, write
from tdx.transforms.base.key_pairs import (
    key_list,
    all_flat,
    map_present,
    missing_key,
    paired,
    require_keys,
)
from tdx.transforms.base.time_behaviour import TimeBehaviour

if TYPE_CHECKING:
    from tdx.envs.base import EnvBase

Entries = Mapping[str, Any]
RowStep = Callable[[Entries, dict[str, Any]], None]


class Transform(nn.Module):
    """Maps what an env returns, what it is given, or both; also works without an env.

    A subclass that maps tensor by tensor implements :meth:`_apply_transform` (and
    :meth:`_transform_spec` if shape, dtype or bounds change); for the way in,
    :meth:`_inv_apply_transform` and :meth:`_inv_transform_spec`. One that needs whole
    TensorDicts implements :meth:`_call`, :meth:`_step`, :meth:`_reset` or :meth:`_inv_call`.

    Args:
        in_keys: the keys read from the env's output.
        out_keys: the keys written, one for each in-key; the in-keys by default.
        in_keys_inv: the keys that the env is given.
        out_keys_inv: the keys that the outside gives, one for each; ``in_keys_inv`` by default.

    Raises:
        ArgumentError: the numbers of keys differ, or an entry is no key.

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

    time_behaviour: TimeBehaviour = TimeBehaviour.CONTROL
    """When it may run; what does not say so runs step by step. An instance may differ."""

    def __init__(
        self,
        in_keys: Sequence[NestedKey] | None = None,
        out_keys: Sequence[NestedKey] | None = None,
        in_keys_inv: Sequence[NestedKey] | None = None,
        out_keys_inv: Sequence[NestedKey] | None = None,
    ) -> None:
        super().__init__()
        self._container_ref: weakref.ref[nn.Module] | None = None
        self._missing_tolerance = False
        self._set_keys(in_keys, in_keys if out_keys is None else out_keys)
        self._set_inverse_keys(in_keys_inv, in_keys_inv if out_keys_inv is None else out_keys_inv)

    # Keys

    def _set_keys(
        self, in_keys: Sequence[NestedKey] | None, out_keys: Sequence[NestedKey] | None
    ) -> None:
        self._in_keys = key_list(in_keys, "in_keys")
        self._out_keys = key_list(out_keys, "out_keys")
        self._pairs = paired(self._in_keys, self._out_keys, "in_keys and out_keys")

    def _set_inverse_keys(
        self, in_keys_inv: Sequence[NestedKey] | None, out_keys_inv: Sequence[NestedKey] | None
    ) -> None:
        self._in_keys_inv = key_list(in_keys_inv, "in_keys_inv")
        self._out_keys_inv = key_list(out_keys_inv, "out_keys_inv")
        self._inverse_pairs = paired(
            self._in_keys_inv, self._out_keys_inv, "in_keys_inv and out_keys_inv"
        )

    @property
    def in_keys(self) -> list[NestedKey]:
        """The keys read from the env's output."""
        return self._in_keys

    @in_keys.setter
    def in_keys(self, value: Sequence[NestedKey] | None) -> None:
        same = self._in_keys == self._out_keys
        self._set_keys(value, value if same else self._out_keys)

    @property
    def out_keys(self) -> list[NestedKey]:
        """The keys written, one for each in-key."""
        return self._out_keys

    @out_keys.setter
    def out_keys(self, value: Sequence[NestedKey] | None) -> None:
        self._set_keys(self._in_keys, value)

    @property
    def in_keys_inv(self) -> list[NestedKey]:
        """The keys that the env is given."""
        return self._in_keys_inv

    @in_keys_inv.setter
    def in_keys_inv(self, value: Sequence[NestedKey] | None) -> None:
        same = self._in_keys_inv == self._out_keys_inv
        self._set_inverse_keys(value, value if same else self._out_keys_inv)

    @property
    def out_keys_inv(self) -> list[NestedKey]:
        """The keys that the outside gives, one for each of ``in_keys_inv``."""
        return self._out_keys_inv

    @out_keys_inv.setter
    def out_keys_inv(self, value: Sequence[NestedKey] | None) -> None:
        self._set_inverse_keys(self._in_keys_inv, value)

    @property
    def missing_tolerance(self) -> bool:
        """Whether in-keys that are not there are passed over instead of raising."""
        return self._missing_tolerance

    def set_missing_tolerance(self, mode: bool = True) -> None:
        """Say whether in-keys that are not there are passed over."""
        self._missing_tolerance = mode

    @property
    def invertible(self) -> bool:
        """Whether anything happens on the way in."""
        return bool(self._inverse_pairs) or type(self)._inv_call is not Transform._inv_call

    # Data

    def _apply_transform(self, tensor: Any) -> Any:
        """One tensor of the env's output, of shape ``[*B, ...]``."""
        raise NotImplementedError(f"{type(self).__name__} implements no _apply_transform")

    def _inv_apply_transform(self, tensor: Any) -> Any:
        """One tensor on its way into the env; unchanged by default."""
        return tensor

    def _call(self, next_tensordict: TensorDictBase) -> TensorDictBase:
        """Map the env's output ``[*B]`` key by key, in place."""
        for in_key, out_key in self._pairs:
            value = read(next_tensordict, in_key)
            if value is None:
                if self._missing_tolerance:
                    continue
                raise self._missing(in_key, next_tensordict)
            write(next_tensordict, out_key, self._apply_transform(value))
        return next_tensordict

    def _step(self, tensordict: TensorDictBase, next_tensordict: TensorDictBase) -> TensorDictBase:
        """Map a step's output.

        Args:
            tensordict: the step's input, ``[*B]``; read only.
            next_tensordict: the step's output so far, ``[*B]``; written to.
        """
        return self._call(next_tensordict)

    def _row_step(self) -> RowStep | None:
        """:meth:`_step` over plain dicts of root entries, for the step loop; ``None`` for none.

        It is a function of the step's input, which it reads, and the step's output so far, which
        it writes to. There is one for whatever is defined by :meth:`_apply_transform` alone.
        """
        own = type(self)
        if own._step is not Transform._step or own._call is not Transform._call:
            return None
        if self._missing_tolerance or not all_flat(self._pairs):
            return None
        pairs, apply, missing = self._pairs, self._apply_transform, self._missing

        def step(tensordict: Entries, fields: dict[str, Any]) -> None:
            for in_key, out_key in pairs:
                value = fields.get(in_key)
                if value is None:
                    raise missing(in_key, fields)
                fields[out_key] = apply(value)

        return step

    def _reset(
        self, tensordict: TensorDictBase | None, tensordict_reset: TensorDictBase
    ) -> TensorDictBase:
        """Map a reset's output: the in-keys that are there.

        With a :meth:`_call` of its own: that, where all its in-keys are there.

        Args:
            tensordict: what ``reset`` was called with, ``[*B]``, with its ``_reset`` masks.
            tensordict_reset: the reset's output so far, ``[*B]``; written to.
        """
        if type(self)._call is Transform._call:
            return map_present(tensordict_reset, self._pairs, self._apply_transform)
        if self._in_keys and all(read(tensordict_reset, key) is not None for key in self._in_keys):
            return self._call(tensordict_reset)
        return tensordict_reset

    def _reset_env_preprocess(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Map what ``reset`` was called with on its way into the env, where it is there."""
        return self._inv_present(tensordict)

    def _inv_call(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Map the env's input ``[*B]`` key by key, in place."""
        for in_key, out_key in self._inverse_pairs:
            value = read(tensordict, out_key)
            if value is None:
                if self._missing_tolerance:
                    continue
                raise self._missing(out_key, tensordict)
            write(tensordict, in_key, self._inv_apply_transform(value))
        return tensordict

    def _inv_present(self, tensordict: TensorDictBase) -> TensorDictBase:
        if type(self)._inv_call is Transform._inv_call:
            pairs = [(outer, inner) for inner, outer in self._inverse_pairs]
            return map_present(tensordict, pairs, self._inv_apply_transform)
        if not self.invertible or any(read(tensordict, key) is None for key in self._out_keys_inv):
            return tensordict
        return self._inv_call(tensordict)

    def _missing(
        self, key: NestedKey, tensordict: TensorDictBase | dict[str, Any]
    ) -> KeyNotFoundError:
        present = tensordict if isinstance(tensordict, dict) else tensordict.keys(True, True)
        known = [normal_key(each) for each in present]
        return missing_key(key, known, "the TensorDict").at(transform=type(self).__name__)

    @dispatch(source="in_keys", dest="out_keys")
    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Map stored data: :meth:`_apply_transform` for each in-key, in place.

        Called by a replay buffer's ``sample()``, never by an env. Takes keyword arguments
        instead of a TensorDict, named after the in-keys.

        Args:
            tensordict: of any shape ``[*B]`` or ``[*B, T]``.
        """
        for in_key, out_key in self._pairs:
            value = read(tensordict, in_key)
            if value is not None:
                tensordict.set(out_key, self._apply_transform(value))
            elif not self._missing_tolerance:
                raise self._missing(in_key, tensordict)
        return tensordict

    def inv(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Map data on its way into the env, in a shallow copy ``[*B]``."""
        return self._inv_call(tensordict.clone(recurse=False))

    def init(self, tensordict: TensorDictBase) -> None:
        """Run what has to happen once before the transform is used on this data."""

    # Specs

    def _transform_spec(self, spec: Any) -> TensorSpec:
        """The spec of what :meth:`_apply_transform` returns for a tensor of this spec."""
        result: TensorSpec = spec
        return result

    def _inv_transform_spec(self, spec: Any) -> TensorSpec:
        """The spec of what the outside may give, where the env takes a tensor of this spec."""
        result: TensorSpec = spec
        return result

    def _mapped(self, spec: Composite) -> Composite:
        present = [pair for pair in self._pairs if spec.get(pair[0], None) is not None]
        if not present:
            return spec
        result = spec.clone()
        result.unlock_()
        for in_key, out_key in present:
            result[out_key] = self._transform_spec(spec[in_key])
        return result

    def _inverse_mapped(self, spec: Composite) -> Composite:
        present = [pair for pair in self._inverse_pairs if spec.get(pair[0], None) is not None]
        if not present:
            return spec
        result = spec.clone()
        result.unlock_()
        for in_key, out_key in present:
            if out_key != in_key:
                del result[in_key]
            result[out_key] = self._inv_transform_spec(spec[in_key])
        return result

    def transform_observation_spec(self, observation_spec: Composite) -> Composite:
        """The observation spec after this transform; the argument stays as it is."""
        return self._mapped(observation_spec)

    def transform_reward_spec(self, reward_spec: Composite) -> Composite:
        """The reward spec after this transform; the argument stays as it is."""
        return self._mapped(reward_spec)

    def transform_done_spec(self, done_spec: Composite) -> Composite:
        """The done flags' spec after this transform; the argument stays as it is."""
        return self._mapped(done_spec)

    def transform_action_spec(self, action_spec: Composite) -> Composite:
        """The action spec that the outside sees; the argument stays as it is."""
        return self._inverse_mapped(action_spec)

    def transform_state_spec(self, state_spec: Composite) -> Composite:
        """The state spec that the outside sees; the argument stays as it is."""
        return self._inverse_mapped(state_spec)

    def transform_output_spec(self, output_spec: Composite) -> Composite:
        """The output spec after this transform, part by part; the argument stays as it is.

        Raises:
            KeyNotFoundError: an in-key is in no part of it.
        """
        self._check_in_keys(output_spec)
        result = output_spec.clone()
        result.unlock_()
        for part, hook in (
            ("full_observation_spec", self.transform_observation_spec),
            ("full_reward_spec", self.transform_reward_spec),
            ("full_done_spec", self.transform_done_spec),
        ):
            before = output_spec.get(part, None)
            if before is not None:
                result[part] = hook(before)
        return result

    def transform_input_spec(self, input_spec: Composite) -> Composite:
        """The input spec that the outside sees, part by part; the argument stays as it is.

        Raises:
            KeyNotFoundError: a key that the env should be given is in no part of it.
        """
        self._check_inverse_keys(input_spec)
        result = input_spec.clone()
        result.unlock_()
        for part, hook in (
            ("full_action_spec", self.transform_action_spec),
            ("full_state_spec", self.transform_state_spec),
        ):
            before = input_spec.get(part, None)
            if before is not None:
                result[part] = hook(before)
        return result

    def _check_in_keys(self, output_spec: Composite) -> None:
        if not self._missing_tolerance and type(self)._call is Transform._call:
            require_keys(output_spec, self._in_keys, "the env at this stage")

    def _check_inverse_keys(self, input_spec: Composite) -> None:
        if not self._missing_tolerance and type(self)._inv_call is Transform._inv_call:
            require_keys(input_spec, self._in_keys_inv, "the env's input at this stage")

    def _transform_specs(
        self, input_spec: Composite, output_spec: Composite
    ) -> tuple[Composite, Composite]:
        """Both specs after this transform, which first takes from them what it left open."""
        self._bind(input_spec, output_spec)
        return self.transform_input_spec(input_spec), self.transform_output_spec(output_spec)

    def _bind(self, input_spec: Composite, output_spec: Composite) -> None:
        """Take from the specs upstream what the constructor left open, such as in-keys."""

    def transform_env_batch_size(self, batch_size: torch.Size) -> torch.Size:
        """The env's batch size after this transform."""
        return batch_size

    def transform_env_device(self, device: torch.device) -> torch.device:
        """The env's device after this transform."""
        return device

    # Place in a chain

    @property
    def container(self) -> nn.Module | None:
        """The ``TransformedEnv`` whose chain this is part of, or else its ``Compose``."""
        owner = None if self._container_ref is None else self._container_ref()
        outer = getattr(owner, "container", None)
        return owner if outer is None else outer

    @property
    def parent(self) -> EnvBase | None:
        """The env as this transform sees it: the base env with the chain up to here.

        Outside an env, ``None``.
        """
        owner = None if self._container_ref is None else self._container_ref()
        before = getattr(owner, "_env_before", None)
        return None if before is None else before(self)

    def set_container(self, container: nn.Module) -> None:
        """Make this transform part of a chain.

        Raises:
            ChainError: it is part of another one, or already of this one.
        """
        owner = None if self._container_ref is None else self._container_ref()
        if owner is not None:
            raise ChainError(
                f"this instance of {type(self).__name__} is already part of a chain",
                hint="put transform.clone() into the second place",
            )
        self._container_ref = weakref.ref(container)

    def reset_parent(self) -> None:
        """Take this transform out of its chain."""
        self._container_ref = None

    def clone(self) -> Self:
        """A transform of its own for another chain, sharing parameters and buffers."""
        copied = type(self).__new__(type(self))
        copied.__dict__.update(self.__dict__)
        for name in ("_parameters", "_buffers", "_modules"):
            copied.__dict__[name] = self.__dict__[name].copy()
        copied._container_ref = None
        return copied

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_container_ref": None}

    def close(self) -> None:
        """Release what the transform holds."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}(keys={self.in_keys})"


class ObservationTransform(Transform):
    """A transform of observations; its in-keys are ``observation`` unless given."""

    time_behaviour = TimeBehaviour.POINTWISE
    default_in_keys: ClassVar[tuple[NestedKey, ...]] = ("observation",)

    def __init__(
        self,
        in_keys: Sequence[NestedKey] | None = None,
        out_keys: Sequence[NestedKey] | None = None,
        in_keys_inv: Sequence[NestedKey] | None = None,
        out_keys_inv: Sequence[NestedKey] | None = None,
    ) -> None:
        in_keys = self.default_in_keys if in_keys is None else in_keys
        super().__init__(in_keys, out_keys, in_keys_inv, out_keys_inv)


class RewardTransform(ObservationTransform):
    """A transform of rewards; its in-keys are ``reward`` unless given."""

    default_in_keys = ("reward",)

"""The base class of every transform."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Self

from tensordict import TensorDictBase, is_tensor_collection
from tensordict.nn import dispatch
from torch import nn

from tdx.core.envs.failures import note_key
from tdx.core.transforms.chunk import Chunk, StepLimit, TimeForm
from tdx.core.transforms.key_pairs import flat_pairs, map_present, missing_key
from tdx.core.transforms.tensor_call import called_with_tensors
from tdx.core.transforms.time_behaviour import TimeBehaviour
from tdx.core.transforms.transform_specs import TransformSpecs
from tdx.errors import ArgumentError, ChainError, KeyNotFoundError
from tdx.keys import NestedKey, normalize_key
from tdx.tensordicts import read, write

if TYPE_CHECKING:
    import torch

    from tdx.core.envs import EnvBase
    from tdx.core.transforms.linear_image import LinearImage

Entries = Mapping[str, Any]
RowStep = Callable[[Entries, dict[str, Any]], None]


class Transform(TransformSpecs):
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

    @property
    def invertible(self) -> bool:
        """Whether anything happens on the way in."""
        return bool(self._inverse_pairs) or self._overrides("_inv_call")

    @property
    def _written_keys(self) -> tuple[NestedKey, ...]:
        """What a step writes where no change of a spec shows it: the out-keys, by default."""
        return tuple(self.out_keys)

    def _overrides(self, *hooks: str) -> bool:
        own = type(self)
        return any(getattr(own, hook) is not getattr(Transform, hook) for hook in hooks)

    def _apply_transform(self, tensor: Any) -> Any:
        """One tensor of the env's output, of shape ``[*B, ...]``."""
        raise NotImplementedError(f"{type(self).__name__} implements no _apply_transform")

    def _linear_image(self, shape: tuple[int, int, int], dtype: torch.dtype) -> LinearImage | None:
        """:meth:`_apply_transform` of one image as a linear map; ``None`` where it is none.

        The engine leaves out one that a subclass's own hooks go beyond.

        Args:
            shape: the image's, without any batch dims.
            dtype: the image's.
        """
        return None

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
            try:
                mapped = self._apply_transform(value)
            except Exception as error:
                note_key(error, in_key)
                raise
            write(next_tensordict, out_key, mapped)
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
        it writes to. There is one for whatever is defined by :meth:`_apply_transform` alone. The
        engine leaves out one that a subclass's own :meth:`_step` or :meth:`_call` goes beyond.
        """
        pairs = flat_pairs(self._pairs)
        if pairs is None or self._missing_tolerance:
            return None
        apply, missing = self._apply_transform, self._missing

        def step(tensordict: Entries, fields: dict[str, Any]) -> None:
            for in_key, out_key in pairs:
                value = fields.get(in_key)
                if value is None:
                    raise missing(in_key, fields)
                fields[out_key] = apply(value)

        return step

    def _owned_row_step(self) -> RowStep | None:
        """:meth:`_row_step` for a loop that alone holds what it puts into the dicts.

        It may keep an entry that it is given as it is, where :meth:`_row_step` must copy it.
        """
        return self._row_step()

    def _time_form(self) -> TimeForm | None:
        """What the hooks do, over many steps at once; ``None`` for none: it runs step by step.

        There is one for whatever is pointwise and defined by :meth:`_apply_transform` alone. The
        engine leaves out one that a subclass's own hooks go beyond.
        """
        if self.time_behaviour is not TimeBehaviour.POINTWISE or self._missing_tolerance:
            return None
        pairs, apply = self._pairs, self._apply_transform

        def run(chunk: Chunk) -> None:
            for in_key, out_key in pairs:
                if in_key not in chunk.steps:
                    raise missing_key(in_key, list(chunk.steps), "the TensorDict")
                chunk.map(in_key, out_key, apply)

        return TimeForm(run, tuple(self._in_keys), tuple(self._out_keys))

    def _step_limits(self) -> tuple[StepLimit, ...]:
        """After how many steps this stage ends an episode, if that is all that it decides by."""
        return ()

    def _reset(
        self, tensordict: TensorDictBase | None, tensordict_reset: TensorDictBase
    ) -> TensorDictBase:
        """Map a reset's output: the in-keys that are there.

        With a :meth:`_call` of its own: that, where all its in-keys are there.

        Args:
            tensordict: what ``reset`` was called with, ``[*B]``, with its ``_reset`` masks.
            tensordict_reset: the reset's output so far, ``[*B]``; written to.
        """
        if not self._overrides("_call"):
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
            try:
                mapped = self._inv_apply_transform(value)
            except Exception as error:
                note_key(error, out_key)
                raise
            write(tensordict, in_key, mapped)
        return tensordict

    def _inv_present(self, tensordict: TensorDictBase) -> TensorDictBase:
        if not self._overrides("_inv_call"):
            pairs = [(outer, inner) for inner, outer in self._inverse_pairs]
            return map_present(tensordict, pairs, self._inv_apply_transform)
        if not self.invertible or any(read(tensordict, key) is None for key in self._out_keys_inv):
            return tensordict
        return self._inv_call(tensordict)

    def _missing(
        self, key: NestedKey, tensordict: TensorDictBase | dict[Any, Any]
    ) -> KeyNotFoundError:
        present = tensordict if isinstance(tensordict, dict) else tensordict.keys(True, True)
        known = [normalize_key(each) for each in present]
        return missing_key(key, known, "the TensorDict").at(transform=type(self).__name__)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """:meth:`forward` of a TensorDict, or of tensors: by keyword, or in the in-keys' order."""
        if "tensordict" in kwargs or (args and is_tensor_collection(args[0])):
            return super().__call__(*args, **kwargs)
        if not args and not kwargs:
            raise ArgumentError("it is called with nothing", hint="give it a TensorDict")
        function = super().__call__
        return called_with_tensors(function, self.in_keys, self.out_keys, args, kwargs)

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

    # Batch size

    _is_verified: ClassVar[bool] = False
    """True if the contract tests cover the class; see :func:`tdx.core.capabilities.declares`.

    They prove that it maps a block of steps as it maps the single steps, if it is pointwise, and
    that it does not write its inputs in place.
    """

    _steps_env: ClassVar[bool] = False
    """True if its hooks step or reset the env inside."""

    _changes_batch: bool = False
    """Whether the stages after this one see another batch size than those before."""

    def _outward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """A step's input, as those after this stage see it."""
        return tensordict

    def _inward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """What a reset is called with, as those before this stage see it."""
        return tensordict

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

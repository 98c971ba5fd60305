"""Base classes by what a transform maps: observations, rewards, actions, keys, stored data."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, TypeGuard

import torch
from tensordict import TensorDictBase
from tensordict.nn import dispatch
from torch import Tensor, nn

from tdx.core.envs.env_specs import done_groups
from tdx.core.transforms.chain_member import ChainOwner
from tdx.core.transforms.kernels import ChunkKernel, DictStep, TimeBehavior
from tdx.core.transforms.spec_maps import (
    missing_key_error,
    normalize_keys,
    output_keys,
    require_composite,
    require_some_keys,
)
from tdx.core.transforms.transform import Transform
from tdx.foundation.errors import ChainError, SpecError, StoredDataError, Where
from tdx.foundation.keys import NestedKey, format_key, parent_key
from tdx.foundation.tensordicts import read
from tdx.specs import Binary, BoundedContinuous, Composite, MultiOneHot, OneHot, TensorSpec


class ObservationTransform(Transform):
    """Maps observations, by default ``observation``."""

    time_behavior = TimeBehavior.POINTWISE
    default_in_keys = ("observation",)


class RewardTransform(Transform):
    """Maps rewards, by default ``reward``."""

    time_behavior = TimeBehavior.POINTWISE
    default_in_keys = ("reward",)


class StoredDataTransform(Transform):
    """Maps stored data only, and refuses to be part of an env."""

    ENV_ERR: ClassVar[str] = "it maps stored data and cannot be part of an env"
    """Message of the error in an env."""

    _refusal_hint: ClassVar[str] = "append it to a replay buffer: buffer.append_transform(...)"

    def set_container(self, container: nn.Module | ChainOwner) -> None:
        """Add this transform to a chain that is not in an env.

        Raises:
            ChainError: The chain is in an env, or the transform is already part of a chain.
        """
        super().set_container(container)
        if hasattr(self.container, "base_env"):
            self.reset_parent()
            raise self._refused()

    def transform_env_batch_size(self, batch_size: torch.Size) -> torch.Size:
        """Refuse to be part of an env.

        Raises:
            ChainError: Always.
        """
        raise self._refused()

    def _refused(self) -> ChainError:
        where = Where(transform=type(self).__name__)
        return ChainError(self.ENV_ERR, hint=self._refusal_hint, where=where)


class EnvOnlyTransform(Transform):
    """Needs an env to act on, and refuses stored data."""

    STORED_ERR: ClassVar[str] = "it acts on an env, and stored data has none"
    """Message of the error for stored data."""

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Refuse stored data.

        Raises:
            StoredDataError: Always.
        """
        raise StoredDataError(
            self.STORED_ERR,
            hint="put it into the env that records the data",
            where=Where(transform=type(self).__name__),
        )


class ActionTransform(Transform):
    """Maps the policy's actions to the env's, and stored actions the other way.

    The output of an env contains no action, so its in-keys are not required there.

    Args:
        in_keys_inv: Actions of the env. ``None``: ``action``.
        out_keys_inv: Keys that the policy writes. ``None``: ``in_keys_inv``.
        in_keys: Actions in stored data. ``None``: ``in_keys_inv``.
        out_keys: Keys to write in stored data. ``None``: the in-keys.
    """

    def __init__(
        self,
        in_keys_inv: Sequence[NestedKey] | None = None,
        out_keys_inv: Sequence[NestedKey] | None = None,
        in_keys: Sequence[NestedKey] | None = None,
        out_keys: Sequence[NestedKey] | None = None,
    ) -> None:
        given = ["action"] if in_keys_inv is None else in_keys_inv
        in_keys_inv = normalize_keys(given, "in_keys_inv")
        if in_keys is None:
            in_keys = in_keys_inv or ["action"]
        super().__init__(in_keys, out_keys, in_keys_inv, out_keys_inv)

    def _call(self, next_tensordict: TensorDictBase) -> TensorDictBase:
        """Return the env's output unchanged, since it contains no action."""
        return next_tensordict

    def make_dict_step(self) -> DictStep | None:
        return lambda root, fields: None

    def make_chunk_kernel(self) -> ChunkKernel | None:
        return ChunkKernel(lambda chunk: None)

    def _check_in_keys(self, output_spec: Composite) -> None:
        """Accept any output spec: only stored data contains the in-keys."""

    _is_bound = True
    """False for a transform that has to read the action spec before it can map it."""

    def transform_action_spec(self, action_spec: Any) -> Any:
        """Return the action spec that the policy sees; without an env that of the given spec."""
        if not isinstance(action_spec, Composite):
            if not self._inverse_pairs:
                return action_spec
            inner, outer = self._inverse_pairs[0]
            return self.transform_action_spec(Composite({inner: action_spec}))[outer]
        if self._is_bound or all(action_spec.get(key, None) is None for key in self.in_keys_inv):
            return self._map_inverse_spec(action_spec)
        bound = self.clone()
        bound._bind(Composite(full_action_spec=action_spec, shape=action_spec.shape), Composite())
        return bound._map_inverse_spec(action_spec)

    def transform_output_spec(self, output_spec: Composite) -> Composite:
        """Return the output spec unchanged."""
        return output_spec


class KeyFilter(Transform):
    """Drops entries. A subclass defines by ``_map_spec`` what remains of a spec."""

    def transform_state_spec(self, state_spec: Composite) -> Composite:
        """Return the state spec without entries that no output contains any longer."""
        return self._map_spec(state_spec)

    def transform_done_spec(self, done_spec: Composite) -> Composite:
        """Return the spec of the remaining done flags.

        Raises:
            ChainError: A group has no flag left.
        """
        require_composite(done_spec)
        result = self._map_spec(done_spec)
        require_done_flags(done_spec, result)
        return result


def action_leaf(input_spec: Composite, key: NestedKey) -> TensorSpec:
    """Return the spec of one of the env's actions."""
    actions = input_spec["full_action_spec"]
    spec: TensorSpec | None = actions.get(key, None)
    if spec is None:
        known = output_keys(Composite(full_action_spec=actions))
        raise missing_key_error(key, known, "the action spec at this stage")
    return spec


def batch_dims_of(spec: Composite, key: NestedKey) -> int:
    """Return the number of batch dims of an entry: those of its innermost group."""
    parent = parent_key(key)
    return spec[parent].ndim if parent else spec.ndim


def has_range(spec: TensorSpec) -> TypeGuard[BoundedContinuous]:
    """Return True if an action is continuous, with a finite and non-empty range everywhere.

    The largest number of a dtype as a bound means that there is none. The width and the middle of
    a range must be finite in the action's dtype as well.
    """
    if not isinstance(spec, BoundedContinuous):
        return False
    limits = torch.finfo(spec.low.dtype)
    limited = (spec.low > limits.min) & (spec.high < limits.max)
    finite = (spec.high - spec.low).isfinite() & (spec.high + spec.low).isfinite()
    return bool((limited & finite & (spec.low < spec.high)).all())


def shared_bounds(low: Tensor, high: Tensor, batch_dims: int) -> tuple[Tensor, Tensor]:
    """Return the bounds of a single row if all rows have the same bounds, else all of them."""
    first = tuple(end[(0,) * batch_dims] for end in (low, high))
    same = all(
        torch.equal(row.expand_as(end), end) for row, end in zip(first, (low, high), strict=True)
    )
    return (first[0], first[1]) if same else (low, high)


class ShapeTransform(ObservationTransform):
    """Rearranges dims, counted from the end or after the batch dims.

    A subclass implements :meth:`_apply_transform`, :meth:`_check_features` and, if it has an
    inverse, :meth:`_inv_apply_transform`. The policy's input has the shape of the forward map of
    the env's input.
    """

    time_behavior = TimeBehavior.POINTWISE
    _counts_from_start = False
    _needs_keys = False
    """True if there are no default in-keys, so that an env needs some keys."""

    def __init__(
        self,
        in_keys: Sequence[NestedKey] | None = None,
        out_keys: Sequence[NestedKey] | None = None,
        in_keys_inv: Sequence[NestedKey] | None = None,
        out_keys_inv: Sequence[NestedKey] | None = None,
    ) -> None:
        self._is_keyless = self._needs_keys and in_keys is None and in_keys_inv is None
        in_keys = [] if self._needs_keys and in_keys is None else in_keys
        super().__init__(in_keys, out_keys, in_keys_inv, out_keys_inv)
        # Number of dims before the features: the batch dims of the env or of the stored data.
        self._leading = 0

    def _on_keys_assigned(self) -> None:
        self._is_keyless = False

    def _bind(self, input_spec: Composite, output_spec: Composite) -> None:
        if self._is_keyless:
            require_some_keys(type(self).__name__, None, None)

    def _set_counted_from_start(self, *dims: int) -> None:
        """Set whether a dim is counted from the start: a chunk of steps has leading dims."""
        self._counts_from_start = any(dim >= 0 for dim in dims)
        if self._counts_from_start:
            self.time_behavior = TimeBehavior.CONTROL

    @abstractmethod
    def _check_features(self, shape: torch.Size) -> None:
        """Check that the dims after the batch dims can be rearranged.

        Args:
            shape: Shape without the batch dims.

        Raises:
            ArgumentError: The dims do not fit.
        """

    def _transform_spec(self, spec: TensorSpec) -> TensorSpec:
        self._check_features(spec.shape[self._leading :])
        if isinstance(spec, (OneHot, MultiOneHot)) and _moves_columns(spec, self._apply_transform):
            example = self._apply_transform(spec.zero())
            return Binary(shape=example.shape, dtype=example.dtype, device=example.device)
        return spec.apply_view(self._apply_transform)

    def _inv_transform_spec(self, spec: TensorSpec) -> TensorSpec:
        self._check_features(spec.shape[self._leading :])
        if isinstance(spec, (OneHot, MultiOneHot)) and _moves_columns(spec, self._apply_transform):
            raise SpecError(
                f"the env takes a {type(spec).__name__}, whose last dim must not change",
                hint="choose other dims, or remove the key from in_keys_inv",
            )
        return spec.apply_view(self._apply_transform)

    def _map_spec(self, spec: Any) -> Any:
        self._leading = len(spec.shape) if isinstance(spec, Composite) else 0
        return super()._map_spec(spec)

    def _map_inverse_spec(self, spec: Any) -> Any:
        self._leading = len(spec.shape) if isinstance(spec, Composite) else 0
        return super()._map_inverse_spec(spec)

    @dispatch(source="in_keys", dest="out_keys")
    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Rearrange stored data in place.

        Args:
            tensordict: Data of any shape; its batch dims keep their positions. Without an env,
                dims from 0 count from the first one.

        Raises:
            ArgumentError: An entry has too few dims after the batch dims.
        """
        env_leading, in_env = self._leading, hasattr(self.container, "base_env")
        self._leading = 0 if self._counts_from_start and not in_env else tensordict.ndim
        try:
            for key in self.in_keys:
                value = read(tensordict, key)
                if value is not None:
                    self._check_features(value.shape[self._leading :])
            return super().forward(tensordict)
        finally:
            self._leading = env_leading


def _moves_columns(spec: TensorSpec, view: Callable[[Tensor], Tensor]) -> bool:
    """Return True if a view moves or splits the last dim, over which a row is one-hot."""
    columns = torch.arange(spec.shape[-1])
    after = view(columns.expand(spec.shape))
    same_size = after.shape[-1:] == columns.shape
    return not (same_size and torch.equal(after, columns.expand(after.shape)))


def require_done_flags(before: Composite, after: Composite) -> None:
    """Check that every group of done flags keeps at least one flag."""
    left = {group.reset_key for group in done_groups(after)}
    for group in done_groups(before):
        if group.reset_key not in left:
            flags = ", ".join(repr(format_key(key)) for key in group.keys)
            raise ChainError(
                f"this stage drops all done flags ({flags}), so episodes would never end",
                hint="keep at least one of them",
                where=Where(key=group.keys[0]),
            )

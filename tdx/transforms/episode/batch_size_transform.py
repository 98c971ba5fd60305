"""Change the batch size of an env."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase

from tdx.core.transforms import TimeBehavior, Transform
from tdx.core.transforms.compose import upstream
from tdx.foundation.errors import ArgumentError, ChainError
from tdx.specs import Composite

ReshapeFunction = Callable[[TensorDictBase], TensorDictBase]
ResetFunction = Callable[..., TensorDictBase]


class BatchSizeTransform(Transform):
    """Reshape the batch dims of the env's output, and reshape its input back.

    The rows keep their order. An env that is not batch-locked gets a new batch size with leading
    dims before its own instead.

    Args:
        batch_size: New batch size with the same number of rows.
        reshape_fn: Function instead of a batch size, such as ``lambda td: td.reshape(2, 2)``:
            ``reshape``, ``flatten``, ``unflatten``, ``squeeze`` or ``unsqueeze``.
        reset_func: Function of the input and the output of the env's reset that returns the
            output in the new batch size.
        env_kwarg: Pass the transformed env to ``reset_func`` as ``env``.

    Raises:
        ArgumentError: Both or neither of ``batch_size`` and ``reshape_fn`` are given, a size is
            not an integer of at least 0, or the function changes the order of rows.
        ChainError: The env has another number of rows (when the transform is added to it).

    Example:
        >>> from tdx import BatchSizeTransform, GymEnv, TransformedEnv
        >>> env = TransformedEnv(GymEnv("Pendulum-v1"), BatchSizeTransform(batch_size=[1]))
        >>> env.batch_size, env.rollout(3).shape
        (torch.Size([1]), torch.Size([1, 3]))
    """

    _is_verified = True

    time_behavior = TimeBehavior.CONTROL
    changes_batch = True

    def __init__(
        self,
        *,
        batch_size: torch.Size | Sequence[int] | None = None,
        reshape_fn: ReshapeFunction | None = None,
        reset_func: ResetFunction | None = None,
        env_kwarg: bool = False,
    ) -> None:
        if (batch_size is None) == (reshape_fn is None):
            given = "neither" if batch_size is None else "both"
            raise ArgumentError(
                f"{given} of batch_size and reshape_fn are given", hint="give one of the two"
            )
        super().__init__()
        self.batch_size = None if batch_size is None else _check_size(batch_size)
        self.reshape_fn = reshape_fn
        self.reset_func = reset_func
        self.env_kwarg = env_kwarg
        self._inner_size: torch.Size | None = None
        self._outer_size: torch.Size | None = None

    def transform_env_batch_size(self, batch_size: torch.Size) -> torch.Size:
        """Return the env's batch size after this transform.

        Raises:
            ChainError: The env has another number of rows.
        """
        new = self._apply_function(batch_size) if self.batch_size is None else self.batch_size
        ahead = len(new) - len(batch_size)
        fits = new.numel() == batch_size.numel()
        if not fits and (self._locked or ahead < 0 or new[ahead:] != batch_size):
            raise ChainError(
                f"the batch size {tuple(new)} has {new.numel()} rows, the env's "
                f"{tuple(batch_size)} has {batch_size.numel()}",
                hint="to run several envs use SerialEnv or ParallelEnv",
            ).at(transform="BatchSizeTransform")
        # An env that accepts leading dims does the work itself.
        self._inner_size = batch_size if fits else new
        self._outer_size = new
        return new

    @property
    def _locked(self) -> bool:
        inside = upstream(self)
        return inside is None or inside[0].batch_locked

    def _apply_function(self, batch_size: torch.Size) -> torch.Size:
        """Return the result of the function for a batch size."""
        assert self.reshape_fn is not None
        rows = torch.arange(batch_size.numel())
        probe = TensorDict(row=rows.reshape(batch_size), batch_size=batch_size)
        result = self.reshape_fn(probe)
        if not isinstance(result, TensorDictBase) or not torch.equal(result["row"].flatten(), rows):
            raise ArgumentError(
                "reshape_fn changes the order of the rows",
                hint="it must be a reshape, such as lambda td: td.reshape(2, 2)",
            )
        return result.batch_size

    def transform_output_spec(self, output_spec: Composite) -> Composite:
        """Return the output spec in the new batch size."""
        return self._with_size(output_spec)

    def transform_input_spec(self, input_spec: Composite) -> Composite:
        """Return the input spec in the new batch size."""
        return self._with_size(input_spec)

    def _with_size(self, spec: Composite) -> Composite:
        new = self.transform_env_batch_size(spec.shape)
        if new.numel() == spec.shape.numel():
            return spec.clone().reshape(new)
        return spec.expand(new)

    # Data

    def to_outer_batch(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Reshape the input or output of the env ``[*B]`` to the new batch size."""
        return tensordict if self._outer_size is None else _reshape(tensordict, self._outer_size)

    def to_inner_batch(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Reshape the policy's data to the env's batch size."""
        return tensordict if self._inner_size is None else _reshape(tensordict, self._inner_size)

    def _inv_call(self, tensordict: TensorDictBase) -> TensorDictBase:
        if upstream(self) is None:  # data that a replay buffer writes has its batch dims
            return tensordict
        return self.to_inner_batch(tensordict.exclude("next"))

    def _reset_env_preprocess(self, tensordict: TensorDictBase) -> TensorDictBase:
        return self.to_inner_batch(tensordict.exclude("next"))

    def _step(self, tensordict: TensorDictBase, next_tensordict: TensorDictBase) -> TensorDictBase:
        return self.to_outer_batch(next_tensordict)

    def _reset(
        self, tensordict: TensorDictBase | None, tensordict_reset: TensorDictBase
    ) -> TensorDictBase:
        if self.reset_func is None:
            return self.to_outer_batch(tensordict_reset)
        extra: dict[str, Any] = {"env": self.container} if self.env_kwarg else {}
        result = self.reset_func(tensordict, tensordict_reset, **extra)
        if not isinstance(result, TensorDictBase) or result.batch_size != self._outer_size:
            is_tensordict = isinstance(result, TensorDictBase)
            size = tuple(result.batch_size) if is_tensordict else type(result)
            raise ArgumentError(
                f"reset_func returned {size} instead of a TensorDict of batch size "
                f"{tuple(self._outer_size or ())}",
                hint="return a TensorDict of the batch size that the env has after this stage",
            )
        return result

    def _call(self, next_tensordict: TensorDictBase) -> TensorDictBase:
        return self.forward(next_tensordict)

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Return stored data as ``reshape_fn`` returns it.

        With ``batch_size``, which are the rows of an env, it stays as it is.
        """
        return tensordict if self.reshape_fn is None else self.reshape_fn(tensordict)

    def __repr__(self) -> str:
        what = "a function" if self.batch_size is None else list(self.batch_size)
        return f"BatchSizeTransform({what})"


def _reshape(tensordict: TensorDictBase, batch_size: torch.Size) -> TensorDictBase:
    if tensordict.batch_size == batch_size:
        return tensordict
    reshaped: TensorDictBase = tensordict.reshape(batch_size)
    return reshaped


def _check_size(batch_size: torch.Size | Sequence[int]) -> torch.Size:
    try:
        size = torch.Size(batch_size)
    except TypeError:
        size = torch.Size([-1])
    if any(dim < 0 for dim in size):
        raise ArgumentError(
            f"batch_size must be a list of integers of at least 0, got {batch_size!r}",
            hint="for example [1], or [2, 2] for a batch of 4",
        )
    return size

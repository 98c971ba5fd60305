"""Give an env another batch size."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase

from tdx.core.transforms import TimeBehaviour, Transform
from tdx.core.transforms.upstream import upstream
from tdx.errors import ArgumentError, ChainError
from tdx.specs import Composite

ReshapeFunction = Callable[[TensorDictBase], TensorDictBase]
ResetFunction = Callable[..., TensorDictBase]


class BatchSizeTransform(Transform):
    """Reshape the batch dims of all that an env returns, and back on the way in.

    The rows keep their order. An env that is not batch-locked is told the new batch size
    instead: its own with dims before it.

    Args:
        batch_size: the new batch size, with as many rows as before.
        reshape_fn: the same as a function, such as ``lambda td: td.reshape(2, 2)``: a
            ``reshape``, ``flatten``, ``unflatten``, ``squeeze`` or ``unsqueeze``.
        reset_func: makes what a reset returns, of the new batch size, from what ``reset`` was
            called with and what the env's own reset returned.
        env_kwarg: whether ``reset_func`` also takes the env with its chain, as ``env``.

    Raises:
        ArgumentError: not exactly one of ``batch_size`` and ``reshape_fn`` is given, the batch
            size holds no numbers of at least 0, or the function changes the order of rows.
        ChainError: the env has another number of rows (when it is put around the env).

    Example:
        >>> from tdx import BatchSizeTransform, GymEnv, TransformedEnv
        >>> env = TransformedEnv(GymEnv("Pendulum-v1"), BatchSizeTransform(batch_size=[1]))
        >>> env.batch_size, env.rollout(3).shape
        (torch.Size([1]), torch.Size([1, 3]))
    """

    _is_verified = True

    time_behaviour = TimeBehaviour.CONTROL
    _changes_batch = True

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
        self.batch_size = None if batch_size is None else _size(batch_size)
        self.reshape_fn = reshape_fn
        self.reset_func = reset_func
        self.env_kwarg = env_kwarg
        self._inside: torch.Size | None = None
        self._outside: torch.Size | None = None

    def transform_env_batch_size(self, batch_size: torch.Size) -> torch.Size:
        """The env's batch size after this transform.

        Raises:
            ChainError: it has another number of rows.
        """
        new = self._reshaped(batch_size) if self.batch_size is None else self.batch_size
        ahead = len(new) - len(batch_size)
        fits = new.numel() == batch_size.numel()
        if not fits and (self._locked or ahead < 0 or new[ahead:] != batch_size):
            raise ChainError(
                f"the batch size {tuple(new)} has {new.numel()} rows, the env's "
                f"{tuple(batch_size)} has {batch_size.numel()}",
                hint="to run several envs use SerialEnv or ParallelEnv",
            ).at(transform="BatchSizeTransform")
        # An env that takes dims ahead of its own does the work itself.
        self._inside = batch_size if fits else new
        self._outside = new
        return new

    @property
    def _locked(self) -> bool:
        found = upstream(self)
        return found is None or found[0].batch_locked

    def _reshaped(self, batch_size: torch.Size) -> torch.Size:
        """What the function makes of a batch size."""
        assert self.reshape_fn is not None
        rows = torch.arange(batch_size.numel())
        probe = TensorDict(row=rows.reshape(batch_size), batch_size=batch_size)
        made = self.reshape_fn(probe)
        if not isinstance(made, TensorDictBase) or not torch.equal(made["row"].flatten(), rows):
            raise ArgumentError(
                "reshape_fn does not keep the rows in their order",
                hint="it must be a reshape, such as lambda td: td.reshape(2, 2)",
            )
        return made.batch_size

    def transform_output_spec(self, output_spec: Composite) -> Composite:
        """The output spec in the new batch size."""
        return self._with_size(output_spec)

    def transform_input_spec(self, input_spec: Composite) -> Composite:
        """The input spec in the new batch size."""
        return self._with_size(input_spec)

    def _with_size(self, spec: Composite) -> Composite:
        new = self.transform_env_batch_size(spec.shape)
        if new.numel() == spec.shape.numel():
            return spec.clone().reshape(new)
        return spec.expand(new)

    # Data

    def _outward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """What the env returns or was given ``[*B]``, in the new batch size."""
        return tensordict if self._outside is None else _in_size(tensordict, self._outside)

    def _inward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """What comes from outside, in the env's batch size."""
        return tensordict if self._inside is None else _in_size(tensordict, self._inside)

    def _inv_call(self, tensordict: TensorDictBase) -> TensorDictBase:
        return self._inward(tensordict.exclude("next"))

    def _reset_env_preprocess(self, tensordict: TensorDictBase) -> TensorDictBase:
        return self._inward(tensordict.exclude("next"))

    def _step(self, tensordict: TensorDictBase, next_tensordict: TensorDictBase) -> TensorDictBase:
        return self._outward(next_tensordict)

    def _reset(
        self, tensordict: TensorDictBase | None, tensordict_reset: TensorDictBase
    ) -> TensorDictBase:
        if self.reset_func is None:
            return self._outward(tensordict_reset)
        extra: dict[str, Any] = {"env": self.container} if self.env_kwarg else {}
        made = self.reset_func(tensordict, tensordict_reset, **extra)
        if not isinstance(made, TensorDictBase) or made.batch_size != self._outside:
            size = tuple(made.batch_size) if isinstance(made, TensorDictBase) else type(made)
            raise ArgumentError(
                f"reset_func returned {size}, not a TensorDict of batch size "
                f"{tuple(self._outside or ())}",
                hint="return a TensorDict of the batch size that the env has after this stage",
            )
        return made

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Stored data, which has its batch dims already, as it is."""
        return tensordict

    def __repr__(self) -> str:
        what = "a function" if self.batch_size is None else list(self.batch_size)
        return f"BatchSizeTransform({what})"


def _in_size(tensordict: TensorDictBase, batch_size: torch.Size) -> TensorDictBase:
    if tensordict.batch_size == batch_size:
        return tensordict
    reshaped: TensorDictBase = tensordict.reshape(batch_size)
    return reshaped


def _size(batch_size: torch.Size | Sequence[int]) -> torch.Size:
    try:
        size = torch.Size(batch_size)
    except TypeError:
        size = torch.Size([-1])
    if any(dim < 0 for dim in size):
        raise ArgumentError(
            f"batch_size must be a list of numbers of at least 0, got {batch_size!r}",
            hint="for example [1], or [2, 2] for a batch of 4",
        )
    return size

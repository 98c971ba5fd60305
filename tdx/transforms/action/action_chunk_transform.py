"""Chunks of the actions that follow."""

from __future__ import annotations

import torch
from tensordict import TensorDictBase
from torch import Tensor

from tdx.core.transforms import TimeBehavior, Transform
from tdx.core.transforms.episodes import require_time_order
from tdx.core.transforms.validation import check_integer
from tdx.foundation.errors import ArgumentError
from tdx.foundation.keys import NestedKey, join_keys, normalize_key
from tdx.foundation.tensordicts import read
from tdx.specs import Composite

ACTION_CHUNK_KEY: NestedKey = ("vla_action", "chunk")
"""Default key of chunks of actions."""

ACTION_IS_PAD_KEY: NestedKey = "action_is_pad"
"""Default key of the mask of repeated actions."""


class ActionChunkTransform(Transform):
    """Write the next ``chunk_size`` actions of each step of stored data.

    A policy that predicts several actions at once learns from such chunks ``[*B, T, H, A]``.
    Where the sequence or the episode ends before a chunk does, the last action is repeated and
    marked as padding. In an env it does nothing.

    Args:
        chunk_size: Number of actions in a chunk, ``H``.
        action_key: Actions ``[*B, T, A]`` to read.
        chunk_key: Key of the chunks.
        pad_key: Key of the mask of the padding, ``[*B, T, H]``.
        time_dim: Dim of time in the actions: the second to last.
        done_key: Flag under ``next`` that ends an episode, if the data has it. ``None``: each
            sequence is one episode.

    Raises:
        ArgumentError: ``chunk_size`` is not an integer of at least 1, ``time_dim`` is not the
            second to last dim of the actions, the flag has another shape than they, or the order
            of the data is random.
        KeyNotFoundError: The data has no actions.

    Example:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> from tdx import ActionChunkTransform
        >>> stored = TensorDict(action=torch.arange(3.0).reshape(1, 3, 1), batch_size=[1, 3])
        >>> ActionChunkTransform(2)(stored)["vla_action", "chunk"].squeeze()
        tensor([[0., 1.],
                [1., 2.],
                [2., 2.]])
    """

    _is_verified = True

    time_behavior = TimeBehavior.CONTROL

    def __init__(
        self,
        chunk_size: int,
        *,
        action_key: NestedKey = "action",
        chunk_key: NestedKey = ACTION_CHUNK_KEY,
        pad_key: NestedKey = ACTION_IS_PAD_KEY,
        time_dim: int = -2,
        done_key: NestedKey | None = "done",
    ) -> None:
        super().__init__(in_keys=[])
        self.chunk_size = check_integer(chunk_size, "chunk_size", 1, "for example chunk_size=8")
        self.action_key, self.chunk_key = normalize_key(action_key), normalize_key(chunk_key)
        self.pad_key, self.time_dim = normalize_key(pad_key), time_dim
        self.done_key = None if done_key is None else normalize_key(done_key)

    def _call(self, next_tensordict: TensorDictBase) -> TensorDictBase:
        return next_tensordict

    def _reset(
        self, tensordict: TensorDictBase | None, tensordict_reset: TensorDictBase
    ) -> TensorDictBase:
        return tensordict_reset

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Write the chunks of stored data, in place.

        Args:
            tensordict: Data with actions ``[*B, T, A]``, in time order along ``T``. Its batch
                size may be ``[*B]`` or ``[*B, T]``.
        """
        if self._missing_tolerance and read(tensordict, self.action_key) is None:
            return tensordict
        action = self._entry(tensordict, self.action_key)
        dim = self.time_dim if self.time_dim >= 0 else action.ndim + self.time_dim
        if dim != action.ndim - 2 or dim < 0:
            raise ArgumentError(
                f"actions of shape {tuple(action.shape)} have no time in dim {self.time_dim}, "
                "before their last dim",
                hint="the actions must have shape [*B, T, A]",
            )
        if dim == tensordict.ndim - 1:
            require_time_order(tensordict)
        time = torch.arange(action.shape[dim], device=action.device)
        ahead = time.unsqueeze(-1) + torch.arange(self.chunk_size, device=action.device)
        last = self._last_steps(tensordict, action, dim).unsqueeze(-1)
        source = torch.minimum(ahead, last)
        shape = (*source.shape, action.shape[-1])
        index = source.flatten(-2).unsqueeze(-1).expand(*source.shape[:-2], -1, action.shape[-1])
        tensordict.set(self.chunk_key, action.gather(dim, index).reshape(shape))
        tensordict.set(self.pad_key, ahead > last)
        return tensordict

    def _last_steps(self, tensordict: TensorDictBase, action: Tensor, dim: int) -> Tensor:
        """Return the last step of the episode of each step, int64 ``[*B, T]``."""
        lead, length = action.shape[: dim + 1], action.shape[dim]
        key = None if self.done_key is None else join_keys("next", self.done_key)
        done = None if key is None else read(tensordict, key)
        if done is None:
            return torch.full(lead, length - 1, device=action.device)
        if done.shape not in (lead, (*lead, 1)):
            raise ArgumentError(
                f"the done flag has shape {tuple(done.shape)}, the actions {tuple(action.shape)}",
                hint="pass done_key=None if each sequence is one episode",
            )
        time = torch.arange(length, device=action.device)
        ends = torch.where(done.reshape(lead), time, length - 1)
        return ends.flip(-1).cummin(-1).values.flip(-1)

    def transform_output_spec(self, output_spec: Composite) -> Composite:
        """Return the output spec unchanged."""
        return output_spec

    def __repr__(self) -> str:
        return f"ActionChunkTransform({self.chunk_size}, action_key={self.action_key!r})"

"""Crop stored sequences at random."""

from __future__ import annotations

import torch
from tensordict import TensorDictBase
from torch import Tensor

from tdx.core.transforms import StoredDataTransform, TimeBehavior
from tdx.core.transforms.episodes import require_time_order
from tdx.core.transforms.validation import check_dim, check_integer
from tdx.foundation.errors import ArgumentError
from tdx.foundation.keys import NestedKey, normalize_key
from tdx.foundation.tensordicts import read


class RandomCropTensorDict(StoredDataTransform):
    """Take a random part of each stored sequence, all of the same length.

    An env cannot use this transform, since it returns other steps than it is given.

    Args:
        sub_seq_len: Number of steps to take.
        sample_dim: Dim of time; negative, so that other batch dims do not count.
        mask_key: Mask ``[*B, T]`` of the valid steps, which come first. ``None``: all are valid.

    Raises:
        ArgumentError: ``sub_seq_len`` is not an integer of at least 1, or the sequences, or
            their valid parts, are shorter.
        ChainError: The transform is put into an env.

    Example:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> from tdx import RandomCropTensorDict
        >>> stored = TensorDict(reward=torch.ones(2, 100, 1), batch_size=[2, 100])
        >>> RandomCropTensorDict(20)(stored).shape
        torch.Size([2, 20])
    """

    _is_verified = True
    ENV_ERR = "it crops stored sequences and cannot be part of an env"

    time_behavior = TimeBehavior.CONTROL

    def __init__(
        self, sub_seq_len: int, sample_dim: int = -1, mask_key: NestedKey | None = None
    ) -> None:
        self.sub_seq_len = check_integer(sub_seq_len, "sub_seq_len", 1, "for example 20")
        super().__init__()
        self.sample_dim = check_dim(sample_dim, "sample_dim", allow_positive=True)
        self.mask_key = None if mask_key is None else normalize_key(mask_key)

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Return a random part of each sequence.

        Args:
            tensordict: Sequences ``[*B, T]``, in time order along ``sample_dim``; not changed.

        Returns:
            TensorDict ``[*B, sub_seq_len]``.
        """
        shape, dim = tensordict.batch_size, self.sample_dim
        if not -len(shape) <= dim < len(shape):
            raise ArgumentError(
                f"data of shape {tuple(shape)} has no dim {dim}",
                hint="pass sequences of shape [*B, T]",
            )
        dim %= len(shape)
        if dim == len(shape) - 1:
            require_time_order(tensordict)
        lengths = self._lengths(tensordict, dim)
        if not lengths.numel():
            shortest = self.sub_seq_len
        elif self.mask_key is None:
            # Known without waiting for an accelerator.
            shortest = shape[dim]
        else:
            shortest = int(lengths.min())
        if shortest < self.sub_seq_len:
            raise ArgumentError(
                f"sequences of {shortest} steps are too short for sub_seq_len={self.sub_seq_len}",
                hint="take fewer steps, or sample longer sequences",
            )
        places = lengths - self.sub_seq_len + 1
        drawn = torch.rand(places.shape, device=places.device, dtype=torch.float64)
        first = (drawn * places).long()
        offsets = torch.arange(self.sub_seq_len, device=places.device)
        offsets = offsets.reshape(-1, *[1] * (len(shape) - dim - 1))
        return tensordict.gather(dim=dim, index=first + offsets)

    def _lengths(self, tensordict: TensorDictBase, dim: int) -> Tensor:
        """Return the number of valid steps of each sequence, with size 1 in the dim of time."""
        shape = tensordict.batch_size
        mask = None if self.mask_key is None else read(tensordict, self.mask_key)
        if mask is None:
            sizes = [1 if index == dim else size for index, size in enumerate(shape)]
            device = tensordict.device or torch.device("cpu")
            return torch.full(sizes, shape[dim], device=device)
        if mask.shape != shape:
            raise ArgumentError(
                f"the mask has shape {tuple(mask.shape)}, the data {tuple(shape)}",
                hint="the mask needs one bool for each step",
            )
        total: Tensor = mask.sum(dim, keepdim=True)
        return total

    def __repr__(self) -> str:
        return f"RandomCropTensorDict({self.sub_seq_len}, sample_dim={self.sample_dim})"

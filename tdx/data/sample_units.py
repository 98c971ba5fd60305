"""Sample units: the steps of a batch that belong to each step that a sampler draws."""

from __future__ import annotations

from typing import Any, Literal, Protocol, get_args, runtime_checkable

import torch
from torch import Tensor

from tdx.core.transforms.validation import check_integer
from tdx.data.layout import Index, Info
from tdx.data.slice_sampler import EpisodeBoundaries
from tdx.data.storage import Storage, TensorStorage
from tdx.foundation.errors import ArgumentError, ChainError
from tdx.foundation.keys import NestedKey

EpisodeBoundary = Literal["pad", "stop", "include_reset"]
ANCHOR, VALID = "anchor_index", "validity_mask"


@runtime_checkable
class SampleUnit(Protocol):
    """Replaces the steps that a sampler draws by those that the batch consists of.

    Pass one to a buffer as ``sample_unit``. Any object with this method is one.
    """

    def expand(
        self, index: Tensor | tuple[Tensor, ...], info: Info, storage: Storage
    ) -> tuple[Index, Info]:
        """Return the positions of the steps of the batch, and the entries that describe them.

        Args:
            index: Positions of the drawn steps: int64 ``[N]``, or one such tensor per dim of the
                storage.
            info: Entries of the sampler, such as importance weights ``[N]``.
            storage: Storage of the steps.

        Returns:
            Positions in the same form, ``[M]``, and entries of the batch ``[M, ...]``.
        """
        ...


class Sequence:
    """Expands each drawn step, the anchor, to a window of ``burn_in + length + bootstrap`` steps.

    The sampler chooses the anchors, so a :class:`PrioritizedSampler` draws windows by the
    priorities of single steps. A batch of ``N`` anchors has ``N`` windows in one dim:
    ``batch.reshape(N, -1)`` has one window per row. These entries describe its steps:

    - ``sequence_id``: number of the window in the batch
    - ``step_in_sequence``: number of the step in the window
    - ``validity_mask``: false for steps outside the episode, which repeat its first or last step
    - ``learning_mask``: true for the ``length`` steps after the burn-in, valid or not
    - ``anchor_index``: position of the anchor

    Importance weights and other entries of the sampler are repeated for each step of the window.
    :meth:`TensorDictReplayBuffer.update_tensordict_priority` gives each anchor the largest
    priority of the valid steps of its windows.

    An episode ends as in :class:`SliceSampler`: by the flag, at the end of the stored data, and
    before a step that does not equal the ``next`` of the previous step.

    Args:
        length: Number of steps from the anchor on.
        episode_boundary: What happens at the end of an episode. ``pad``: repeat its last step.
            ``stop``: begin earlier, so that the window ends with the episode, or pad if the
            episode is too short. ``include_reset``: continue with the next episode.
        done_key: Flag of the last step of an episode. ``None``: the stored steps are one episode.
        burn_in: Number of steps before the anchor, for the state of a recurrent policy.
        bootstrap: Number of steps after the others, for targets of several steps.
        dilation: Distance of the steps of a window: 2 skips every other step.

    Raises:
        ArgumentError: A number is too small, or ``episode_boundary`` is unknown.

    Example:
        >>> from tdx import GymEnv, LazyTensorStorage, Sequence, TensorDictReplayBuffer
        >>> buffer = TensorDictReplayBuffer(
        ...     storage=LazyTensorStorage(100),
        ...     batch_size=4,
        ...     sample_unit=Sequence(length=5, burn_in=2),
        ... )
        >>> _ = buffer.extend(GymEnv("Pendulum-v1").rollout(100))
        >>> windows = buffer.sample().reshape(4, 7)
        >>> windows["learning_mask"][0]
        tensor([False, False,  True,  True,  True,  True,  True])
    """

    def __init__(
        self,
        length: int,
        episode_boundary: EpisodeBoundary = "pad",
        done_key: NestedKey | None = ("next", "done"),
        burn_in: int = 0,
        bootstrap: int = 0,
        dilation: int = 1,
    ) -> None:
        for name, value, least in (
            ("length", length, 1),
            ("burn_in", burn_in, 0),
            ("bootstrap", bootstrap, 0),
            ("dilation", dilation, 1),
        ):
            check_integer(value, name, least, "it counts steps")
        if episode_boundary not in get_args(EpisodeBoundary):
            raise ArgumentError(
                f"unknown episode_boundary {episode_boundary!r}",
                hint=f"use one of {', '.join(get_args(EpisodeBoundary))}",
            )
        self.length, self.burn_in, self.bootstrap = length, burn_in, bootstrap
        self.dilation = dilation
        self.episode_boundary: EpisodeBoundary = episode_boundary
        self.done_key = done_key
        self._boundaries = EpisodeBoundaries(done_key, None, None, None, None)

    def expand(
        self, index: Tensor | tuple[Tensor, ...], info: Info, storage: Storage
    ) -> tuple[Index, Info]:
        """Return the positions and entries of the windows; see :meth:`SampleUnit.expand`.

        Raises:
            ChainError: The storage has no TensorDicts in tensors.
            KeyNotFoundError: The data has no ``done_key``.
        """
        if not isinstance(storage, TensorStorage) or not (storage.layout and storage.layout.groups):
            raise ChainError(
                f"Sequence needs a TensorStorage of TensorDicts, got a {type(storage).__name__}",
                hint="store TensorDicts in a LazyTensorStorage or a LazyMemmapStorage",
            )
        parts = index if isinstance(index, tuple) else (index,)
        device, count = parts[0].device, len(parts[0])
        anchors = torch.stack(parts, -1) if storage.ndim > 1 else parts[0]
        ring = self.episode_boundary == "include_reset" or self.done_key is None
        place, begin, end = self._boundaries.bounds_of(
            storage, storage.step_numbers(anchors.cpu()), whole_ring=ring
        )
        if self.episode_boundary == "stop":
            last = place + self.dilation * (self.length + self.bootstrap - 1)
            earlier = place - (last - (end - 1)).clamp(min=0)
            place = torch.where(earlier < begin, place, earlier)
        size = self.burn_in + self.length + self.bootstrap
        number = torch.arange(size)
        wanted = place.unsqueeze(1) + self.dilation * (number - self.burn_in)
        begin, end = begin.unsqueeze(1), end.unsqueeze(1)
        valid = (wanted >= begin) & (wanted < end)
        places = torch.minimum(torch.maximum(wanted, begin), end - 1)
        positions = storage.positions(self._boundaries.steps_at(storage, places.flatten()))
        learning = (number >= self.burn_in) & (number < self.burn_in + self.length)
        entries: dict[NestedKey, Any] = {
            key: value.repeat_interleave(size, 0)
            if isinstance(value, Tensor) and value.ndim and len(value) == count
            else value
            for key, value in info.items()
        }
        entries |= {
            "sequence_id": torch.arange(count, device=device).repeat_interleave(size),
            "step_in_sequence": number.to(device).repeat(count),
            VALID: valid.flatten().to(device),
            "learning_mask": learning.to(device).repeat(count),
            ANCHOR: anchors.repeat_interleave(size, 0),
        }
        moved = tuple(part.to(device) for part in positions)
        return (moved if storage.ndim > 1 else moved[0]), entries

    def __repr__(self) -> str:
        return (
            f"Sequence(length={self.length}, burn_in={self.burn_in}, bootstrap={self.bootstrap}, "
            f"episode_boundary={self.episode_boundary!r})"
        )

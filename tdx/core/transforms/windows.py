"""The last few frames of each step of a chunk, by one table of rows."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from tdx.core.transforms.chunk import Chunk, new_column
from tdx.keys import NestedKey


@dataclass(frozen=True, slots=True)
class Windows:
    """Stacks of ``count`` frames that never reach across a reset.

    Args:
        count: the number of frames.
        dim: the dim along which they are concatenated, negative.
        mask_key: the key whose reset mask is followed.
        padding: what stands before the first frame of an episode; ``None`` for that frame.
    """

    count: int
    dim: int
    mask_key: NestedKey
    padding: float | None

    def over(
        self, chunk: Chunk, in_key: NestedKey, earlier: list[Tensor]
    ) -> tuple[Tensor, list[Tensor]]:
        """The stacks of a chunk, ``[T, *B, ...]``, and the ``count - 1`` newest frames.

        Every frame of a stack is a row of one pool: the frames before the chunk, those of its
        steps, those of its resets, and one of padding.

        Args:
            chunk: the steps.
            in_key: of the frames.
            earlier: the ``count - 1`` frames before, ``[*B, ...]`` each.
        """
        frames, batch = chunk.steps[in_key], chunk.batch_size
        shape, lead = frames.shape[1 + len(batch) :], 1 + len(batch)
        parts = [*(frame.unsqueeze(0) for frame in earlier), frames]
        rows = self._without_resets(chunk, frames.device)
        if chunk.times:
            begun = chunk.resets[in_key]
            parts += [begun, torch.full_like(begun[:1], self.padding or 0)]
            rows = self._across_resets(rows, chunk, begun)
        pool, size = _joined(parts), batch.numel()
        index = rows.expand(chunk.length, *batch, self.count).reshape(-1, size, self.count) * size
        index = index + torch.arange(size, device=index.device).unsqueeze(-1)
        flat, wanted = pool.reshape(-1, *shape), index.reshape(-1)
        if flat.requires_grad:
            stacks = flat.index_select(0, wanted)
        else:
            stacks = new_column((len(wanted), *shape), flat)
            torch.index_select(flat, 0, wanted, out=stacks)
        stacks = stacks.reshape(chunk.length, *batch, self.count, *shape)
        last = list(stacks[-1].unbind(lead - 1))[1:]
        wide = list(frames.shape)
        wide[self.dim] *= self.count
        return stacks.movedim(lead, stacks.ndim + self.dim - 1).reshape(wide), last

    def _without_resets(self, chunk: Chunk, device: torch.device) -> Tensor:
        """Which row of the pool each frame of each stack is, ``[T, *1, count]``."""
        steps = torch.arange(chunk.length, device=device)
        ones = [1] * (len(chunk.batch_size) + 1)
        return steps.reshape(-1, *ones) + torch.arange(self.count, device=device)

    def _across_resets(self, rows: Tensor, chunk: Chunk, begun: Tensor) -> Tensor:
        """The same with resets among the steps, ``[T, *B, count]``.

        Args:
            rows: what they would be without.
            chunk: the steps.
            begun: the frames of the resets, ``[R, *B, ...]``.
        """
        device, batch, before = begun.device, chunk.batch_size, self.count - 1
        times = torch.tensor(chunk.times, device=device)
        place = torch.arange(len(times), device=device)
        mine = chunk.reset_rows(self.mask_key, begun.reshape(len(times), *batch, -1)[..., 0])
        # The last reset before each step, by its place among the resets; -1 before any.
        last = torch.full((chunk.length, *batch), -1, dtype=torch.int64, device=device)
        wide = place.reshape(-1, *[1] * len(batch)).expand(mine.shape)
        last[times] = torch.where(mine, wide, last[times])
        last = last.cummax(0).values.unsqueeze(-1)
        since = torch.where(last >= 0, times[last.clamp_min(0)] + before, -1)
        found = torch.where(rows < since, last + (before + chunk.length), rows)
        if self.padding is not None:
            found = torch.where(rows < since - 1, before + chunk.length + len(times), found)
        return found


def _joined(parts: list[Tensor]) -> Tensor:
    """The parts along their first dim."""
    if any(part.requires_grad for part in parts):
        return torch.cat(parts)
    made = new_column((sum(map(len, parts)), *parts[0].shape[1:]), parts[0])
    return torch.cat(parts, out=made)

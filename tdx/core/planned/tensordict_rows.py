"""Collects the steps of any env whose steps read no more than they say, as TensorDicts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor

from tdx.core.envs import EnvBase
from tdx.core.envs.alike_steps import AlikeSteps, unlike_reset
from tdx.core.envs.done_flags import as_row_mask, governing_mask, keep_unmasked_rows
from tdx.core.envs.failures import failed
from tdx.core.envs.policies import ActionCheck
from tdx.core.planned.collected import Collected, Stop
from tdx.core.planned.columns import as_tensordict, leaves_of, stacked_leaves
from tdx.core.planned.inputs import ClosedLoop, Drawn, Inputs, OpenLoop
from tdx.core.planned.now_program import NowProgram
from tdx.core.transforms.chunk import StepLimit
from tdx.keys import NestedKey, sibling_key, split_key


class TensorDictRows:
    """Steps an env through its TensorDicts; its columns are ``[T, *B, ...]``.

    On an accelerator nothing is looked at on the host while it steps, unless the rollout stops
    at an end: every step may be followed by a reset, of the rows that ended.

    Args:
        base: the env before all chains.
        limits: after how many steps the chain ends an episode.
        now: the stages that run along.
        check: holds a policy's actions against the action spec.
    """

    def __init__(
        self, base: EnvBase, limits: Sequence[StepLimit], now: NowProgram, check: ActionCheck
    ) -> None:
        self._base, self._now, self._check = base, now, check
        self._limits = tuple(limits)
        self._alike = AlikeSteps()
        self._looks = base.device.type == "cpu" or not base._resets_by_mask
        self._reads = tuple(base._step_reads or ())
        self._ends = {
            sibling_key(key, "_reset"): key
            for key in base.done_keys
            if split_key(key)[-1] == "done"
        }

    def collect(
        self, first: Mapping[NestedKey, Tensor], inputs: Inputs, length: int, stop: Stop
    ) -> Collected:
        """See :class:`~tdx.core.planned.collected.Collector`."""
        return _Run(self, first, inputs, length, stop).collected()


class _Run:
    """One chunk's loop, and what it keeps."""

    def __init__(
        self,
        rows: TensorDictRows,
        first: Mapping[NestedKey, Tensor],
        inputs: Inputs,
        length: int,
        stop: Stop,
    ) -> None:
        self.rows, self.inputs, self.length, self.stop = rows, inputs, length, stop
        self.first = first
        self.steps: list[TensorDictBase] = []
        self.resets: list[TensorDictBase] = []
        self.masks: list[dict[NestedKey, Tensor]] = []
        self.times: list[int] = []
        self.given: list[dict[NestedKey, Tensor]] = []
        counted = {limit.count_key: limit.counted(first) for limit in rows._limits}
        self.counts = {key: count for key, count in counted.items() if count is not None}
        self.stopped = self._in_step = False
        self.tried = 0
        self.error: Exception | None = None
        self.root: dict[NestedKey, Any] = dict(first)
        self.drawn: Drawn | None = None
        if isinstance(inputs, OpenLoop):
            self.drawn = inputs.draw(length)

    def collected(self) -> Collected:
        """Make the steps, and return them as columns."""
        try:
            self._loop()
            if self.drawn is not None and not self.stopped:
                self.error = self.drawn.error
        except Exception as error:
            asked = self._in_step and self.given
            self.error = self.rows._check.rather(self.given[-1].get, error) if asked else error
        unlike = self.rows._alike.first_unlike(self.steps)
        if unlike is not None:
            made, self.error = unlike
            self.stopped = False
            del self.steps[made:]
        if self.error is not None:
            while self.times and self.times[-1] >= len(self.steps):
                self.times.pop(), self.resets.pop(), self.masks.pop()
        made = len(self.steps)
        result = Collected(made, stopped=self.stopped, error=self.error)
        if self.drawn is not None:
            self.drawn.keep(self.tried)
            result.inputs = {key: value[:made] for key, value in self.drawn.columns.items()}
        elif made:
            given = self.given[:made]
            result.inputs = {key: torch.stack([row[key] for row in given]) for key in given[0]}
        if made:
            result.steps = stacked_leaves(self.steps)
            columns = self.rows._now.columns(made, len(self.times))
            result.now_steps, result.now_resets = columns
        if self.times:
            result.times = tuple(self.times)
            result.resets = stacked_leaves(self.resets)
            keys = self.masks[0]
            result.masks = {key: torch.stack([row[key] for row in self.masks]) for key in keys}
        self.rows._now.forget()
        return result

    def _loop(self) -> None:
        actions: Sequence[TensorDictBase] | None = None
        if self.drawn is not None:
            actions = self.drawn.inner.unbind(0) if self.drawn.length else ()
        for index in range(self.length if self.drawn is None else self.drawn.length):
            self.tried = index + 1
            written = {} if actions is not None else self._asked()
            inner = actions[index] if actions is not None else self.inner
            following = self._stepped(inner)
            fields = leaves_of(following)
            if self.rows._now.forms:
                fields = self.rows._now.step({**self.root, **written}, fields)
            self.root.update(fields)
            self.steps.append(following)
            if not self._goes_on(index, following, fields):
                return

    def _asked(self) -> dict[NestedKey, Tensor]:
        """What the policy writes for this step."""
        assert isinstance(self.inputs, ClosedLoop)
        written = self.inputs.act(self.root)
        self.rows._check(written.get)
        self.inner, shown = self.inputs.inward(written)
        self.given.append({**written, **shown})
        self.root.update(self.given[-1])
        return written

    def _stepped(self, inner: TensorDictBase) -> TensorDictBase:
        base = self.rows._base
        if self.rows._reads:
            state = {key: self.root[key] for key in self.rows._reads if key in self.root}
            given = as_tensordict({**state, **leaves_of(inner)}, base.batch_size, base.device)
        else:
            given = inner.clone(recurse=False)
        try:
            return base._completed_step(given)
        except Exception as error:
            self._in_step = True
            made = failed(base, "step", error)
            raise made from made.__cause__

    # Ends

    def _goes_on(
        self, index: int, following: TensorDictBase, fields: Mapping[NestedKey, Any]
    ) -> bool:
        """Begin anew what has ended; whether the rollout goes on."""
        masks = self._ended(fields)
        rows = self.rows
        if rows._looks or self.stop == "any":
            if not any(bool(mask.any()) for mask in masks.values()):
                return True
            if self.stop == "any":
                self.stopped = True
                return False
        if index + 1 < self.length:
            self._begin(index + 1, following, masks)
        return True

    def _ended(self, fields: Mapping[NestedKey, Any]) -> dict[NestedKey, Tensor]:
        """Which rows are done after this step, by the key of their reset mask."""
        masks = {}
        for mask_key, key in self.rows._ends.items():
            flag = fields[key]
            for limit in self.rows._limits:
                if limit.done_key == key:
                    before = self.counts.get(limit.count_key)
                    count = torch.zeros_like(flag, dtype=torch.int64) if before is None else before
                    self.counts[limit.count_key] = count = count + 1
                    flag = flag | (count >= limit.most)
            masks[mask_key] = flag
        return masks

    def _begin(self, time: int, following: TensorDictBase, masks: dict[NestedKey, Tensor]) -> None:
        rows = self.rows
        base = rows._base
        masks = {key: mask.clone() for key, mask in masks.items()}
        before = as_tensordict(
            leaves_of(following),
            base.batch_size,
            base.device,
        )
        given = before.clone(recurse=False)
        for key, mask in masks.items():
            given.set(key, mask.clone())
        try:
            begun = base._completed_reset(given)
        except Exception as error:
            made = failed(base, "reset", error)
            raise made from made.__cause__
        begun = begun.clone(recurse=False)
        self._check_begun(begun, before)
        keep_unmasked_rows(begun, before, masks, len(base.batch_size))
        for limit in rows._limits:
            mask = masks[sibling_key(limit.done_key, "_reset")]
            self.counts[limit.count_key] = self.counts[limit.count_key].masked_fill(mask, 0)
        fields = leaves_of(begun)
        after = fields
        if rows._now.forms:
            after = rows._now.reset(self.root, dict(fields), masks)
        for key, value in after.items():
            self.root[key] = self._merged(key, value, masks)
        self.times.append(time)
        self.resets.append(begun)
        self.masks.append(masks)

    def _check_begun(self, begun: TensorDictBase, before: TensorDictBase) -> None:
        """Raise where a reset returns another shape or dtype than the step before it."""
        fields = leaves_of(before)
        for key, value in leaves_of(begun).items():
            there = fields.get(key)
            if not isinstance(there, Tensor) or not isinstance(value, Tensor):
                continue
            if there.shape != value.shape or there.dtype != value.dtype:
                raise unlike_reset(key, value, there)

    def _merged(self, key: NestedKey, value: Tensor, masks: dict[NestedKey, Tensor]) -> Tensor:
        before = self.root.get(key)
        if not isinstance(before, Tensor) or before.shape != value.shape:
            return value
        lead = len(self.rows._base.batch_size)
        mask = governing_mask(key, masks, lead)
        assert mask is not None
        return torch.where(as_row_mask(mask, value, lead), value, before)

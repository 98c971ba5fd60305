"""Collectors: the loops that step an env before its chain, and keep what it returns.

:class:`Collector` and :class:`RawRows` are the protocols that an env implements to be stepped
without TensorDicts. :class:`TensorDictCollector` steps any other env.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import torch
from tensordict import TensorDictBase
from torch import Tensor

from tdx.core.envs.done_flags import (
    episode_end_keys,
    expand_mask,
    inherit_masks,
    keep_unmasked_rows,
    mask_for_entry,
)
from tdx.core.envs.eager_run import StepLayout, reset_mismatch
from tdx.core.envs.env_base import EnvBase
from tdx.core.envs.failures import env_failure
from tdx.core.meter import Meter, Part
from tdx.core.plan.image_fusion import ImageKernel
from tdx.core.planned.actions import ActionBlock, ActionSource, OpenLoopActions, PolicyActions
from tdx.core.planned.columns import CollectedSteps, as_tensordict, flatten, stack_leaves
from tdx.core.planned.immediate import ImmediateStages
from tdx.core.transforms.kernels import StepLimit
from tdx.foundation.keys import NestedKey, sibling_key, split_key
from tdx.foundation.tensordicts import read

Stop = Literal["any", "never"]


class Collector(Protocol):
    """Steps an env before its chain many times."""

    def collect(
        self, first: Mapping[NestedKey, Tensor], source: ActionSource, length: int, stop: Stop
    ) -> CollectedSteps:
        """Make up to ``length`` steps after the root entries ``first``, ``[*B, ...]``.

        ``stop``: ``any`` stops at the first done flag; ``never`` resets the done rows, except after
        the last step.
        """


@dataclass(frozen=True, slots=True)
class CollectorSetup:
    """What a collector needs to know about the chain around its env."""

    limits: Sequence[StepLimit]  # numbers of steps after which the chain ends an episode
    immediate: ImmediateStages  # the stages that run in each step
    kernel: ImageKernel | None = None  # image operator to apply to each observation as it arrives
    kernel_part: Part | None = None  # the part that the kernel is measured as
    meter: Meter | None = None
    # The parts that the step and the reset of the env are measured as.
    base_parts: tuple[Part, Part] | None = None


class RawRows(Protocol):
    """Rows of an env that can be stepped without TensorDicts; see ``EnvBase.raw_rows``."""

    @property
    def is_ready(self) -> bool:
        """True if the next step can be made without TensorDicts."""

    @property
    def has_array_observations(self) -> bool:
        """True if each observation is one array, to which an image operator can be applied."""

    def collector(self, setup: CollectorSetup) -> Collector:
        """Return the collector that steps these rows."""

    def stack(
        self,
        rows: Sequence[RawRows],
        batch_size: torch.Size,
        on_chunk: Callable[[Mapping[NestedKey, Tensor]], None],
    ) -> RawRows | None:
        """Return several envs, these included, as rows of a batch; ``None`` if that is impossible.

        ``on_chunk`` is called with the output of the last step of each chunk, ``[*B, ...]``.
        """

    def after_chunk(self, last: Mapping[NestedKey, Tensor]) -> None:
        """Called with the output of the last step of a chunk, ``[*B, ...]``."""


class TensorDictCollector:
    """Steps an env over TensorDicts; its columns are ``[T, *B, ...]``.

    On an accelerator the host reads no values while it steps, unless the rollout stops at a done
    flag: each step may be followed by a reset of the rows that ended.
    """

    def __init__(
        self,
        base: EnvBase,
        limits: Sequence[StepLimit],
        immediate: ImmediateStages,
    ) -> None:
        self.base, self.immediate = base, immediate
        self.limits = tuple(limits)
        self.layout = StepLayout()
        self.reads_flags = base.env_specs.main_device.type == "cpu" or not base.resets_by_mask
        self.reads = tuple(base.step_reads or ())
        self.done_keys = {
            sibling_key(key, "_reset"): key
            for key in base.done_keys
            if split_key(key)[-1] == "done"
        }
        ends = {sibling_key(key, "_reset") for key in episode_end_keys(base.done_keys)}
        self.inner_groups = {
            key: base.full_done_spec[done].shape
            for key, done in self.done_keys.items()
            if key not in ends
        }
        """Shapes of the masks of groups inside of others, which are reset with those."""

    def collect(
        self, first: Mapping[NestedKey, Tensor], source: ActionSource, length: int, stop: Stop
    ) -> CollectedSteps:
        """See :class:`~Collector`."""
        return _Run(self, first, source, length, stop).collected()


class _Run:
    """The loop of one chunk, and what it has collected so far."""

    def __init__(
        self,
        settings: TensorDictCollector,
        first: Mapping[NestedKey, Tensor],
        source: ActionSource,
        length: int,
        stop: Stop,
    ) -> None:
        self.settings, self.source, self.length, self.stop = settings, source, length, stop
        self.first = first
        self.steps: list[TensorDictBase] = []
        self.resets: list[TensorDictBase] = []
        self.masks: list[dict[NestedKey, Tensor]] = []
        self.times: list[int] = []
        self.given: list[dict[NestedKey, Tensor]] = []
        counted = {limit.count_key: limit.counted(first) for limit in settings.limits}
        self.counts = {key: count for key, count in counted.items() if count is not None}
        self.stopped = self._in_step = False
        self.tried = 0
        self.error: Exception | None = None
        self.root: dict[NestedKey, Any] = dict(first)
        self.block: ActionBlock | None = None
        if isinstance(source, OpenLoopActions):
            self.block = source.draw(length)

    def collected(self) -> CollectedSteps:
        """Make the steps and return them as columns."""
        try:
            self._loop()
            if self.block is not None and not self.stopped:
                self.error = self.block.error
        except Exception as error:
            self.error = error
            if isinstance(source := self.source, PolicyActions) and self._in_step:
                self.error = source.check.explain(self.given[-1].get, error)
        mismatch = self.settings.layout.find_mismatch(self.steps)
        if mismatch is not None:
            count, self.error = mismatch
            self.stopped = False
            del self.steps[count:]
        count, base = len(self.steps), self.settings.base
        result = CollectedSteps(
            count, base.batch_size, self.first, stopped=self.stopped, error=self.error
        )
        if self.block is not None:
            self.block.keep(self.tried)
            result.inputs = {key: value[:count] for key, value in self.block.columns.items()}
        elif count:
            given = self.given[:count]
            result.inputs = {key: torch.stack([step[key] for step in given]) for key in given[0]}
        if count:
            result.steps = stack_leaves(self.steps)
            columns = self.settings.immediate.columns(count, len(self.times))
            result.immediate_steps, result.immediate_resets = columns
        if self.times:
            result.times = tuple(self.times)
            result.resets = stack_leaves(self.resets)
            keys = self.masks[0]
            result.masks = {key: torch.stack([masks[key] for masks in self.masks]) for key in keys}
        self.settings.immediate.clear()
        if self.error is not None:
            # A reset that belongs to an incomplete step.
            result.cut(count, self.error)
        return result

    def _loop(self) -> None:
        actions: Sequence[TensorDictBase] | None = None
        if self.block is not None:
            actions = self.block.inner.unbind(0) if self.block.length else ()
        for index in range(self.length if self.block is None else self.block.length):
            self.tried = index + 1
            written = {} if actions is not None else self._act()
            inner = actions[index] if actions is not None else self.inner
            following = self._step(inner)
            fields = flatten(following)
            if self.settings.immediate.stages:
                fields = self.settings.immediate.step({**self.root, **written}, fields)
            self.root.update(fields)
            self.steps.append(following)
            masks = self._done_masks(fields)
            if self.settings.reads_flags or self.stop == "any":
                if not any(bool(mask.any()) for mask in masks.values()):
                    continue
                if self.stop == "any":
                    self.stopped = True
                    return
            if index + 1 < self.length:
                self._reset(index + 1, following, masks)

    def _act(self) -> dict[NestedKey, Tensor]:
        """Call the policy for this step."""
        assert isinstance(self.source, PolicyActions)
        written = self.source.act(self.root)
        self.source.check(written.get, written.__setitem__)
        self.inner, handed_out = self.source.apply_inverse(written)
        self.given.append({**written, **handed_out})
        self.root.update(self.given[-1])
        return written

    def _step(self, inner: TensorDictBase) -> TensorDictBase:
        base = self.settings.base
        if self.settings.reads:
            state = {key: self.root[key] for key in self.settings.reads if key in self.root}
            given = as_tensordict({**state, **flatten(inner)}, base.batch_size, base.device)
        else:
            given = inner.clone(recurse=False)
        try:
            return base.completed_step(given)
        except Exception as error:
            self._in_step = True
            failure = env_failure(base, "step", error)
            raise failure from failure.__cause__

    def _done_masks(self, fields: Mapping[NestedKey, Any]) -> dict[NestedKey, Tensor]:
        """Return the rows that are done after this step, by the key of their reset mask."""
        masks = {}
        for mask_key, key in self.settings.done_keys.items():
            flag = fields[key]
            for limit in self.settings.limits:
                if limit.done_key == key:
                    before = self.counts.get(limit.count_key)
                    count = torch.zeros_like(flag, dtype=torch.int64) if before is None else before
                    self.counts[limit.count_key] = count = count + 1
                    flag = flag | (count >= limit.most)
            if mask_key not in self.settings.inner_groups:
                masks[mask_key] = flag
        if self.settings.inner_groups:
            inherit_masks(masks, self.settings.inner_groups, len(self.settings.base.batch_size))
        return masks

    def _reset(self, time: int, following: TensorDictBase, masks: dict[NestedKey, Tensor]) -> None:
        settings, base = self.settings, self.settings.base
        masks = {key: mask.clone() for key, mask in masks.items()}
        before = as_tensordict(flatten(following), base.batch_size, base.device)
        given = before.clone(recurse=False)
        for key, mask in masks.items():
            given.set(key, mask.clone())
        try:
            output = base.completed_reset(given)
        except Exception as error:
            failure = env_failure(base, "reset", error)
            raise failure from failure.__cause__
        output = output.clone(recurse=False)
        for key, value in flatten(output).items():
            previous = read(before, key)
            if not isinstance(previous, Tensor) or not isinstance(value, Tensor):
                continue
            if previous.shape != value.shape or previous.dtype != value.dtype:
                raise reset_mismatch(key, value, previous)
        keep_unmasked_rows(output, before, masks, len(base.batch_size))
        for limit in settings.limits:
            mask = masks[sibling_key(limit.done_key, "_reset")]
            self.counts[limit.count_key] = self.counts[limit.count_key].masked_fill(mask, 0)
        fields = flatten(output)
        after = settings.immediate.reset(self.root, dict(fields), masks)
        for key, value in after.items():
            self.root[key] = self._merged(key, value, masks)
        self.times.append(time)
        self.resets.append(output)
        self.masks.append(masks)

    def _merged(self, key: NestedKey, value: Tensor, masks: dict[NestedKey, Tensor]) -> Tensor:
        before = self.root.get(key)
        if not isinstance(before, Tensor) or before.shape != value.shape:
            return value
        lead = len(self.settings.base.batch_size)
        mask = mask_for_entry(key, masks, lead)
        assert mask is not None
        return torch.where(expand_mask(mask, value, lead), value, before)

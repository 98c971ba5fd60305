"""``CheckpointStack``: the processors of a policy checkpoint as stages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from gymnasium.spaces import Box

from tdx.foundation.errors import ArgumentError
from tdx.specs.leaf import LeafSpec
from tdx.stacks.checkpoints.dataset import Dataset, DatasetSamples
from tdx.stacks.checkpoints.model import (
    ABSOLUTE_ACTIONS,
    ROLES,
    VIDEO,
    Checkpoint,
    Feature,
    Processor,
    SampleEntries,
    Step,
)
from tdx.stacks.checkpoints.poses import relative_keys
from tdx.stacks.checkpoints.scaling import STATISTICS
from tdx.stacks.checkpoints.specs import checkpoint_calls, trace_specs
from tdx.stacks.checkpoints.steps import DEFINITIONS, why_opaque
from tdx.stacks.samples import Part, SampleStack, Spaces, StageArrays, unbounded_box


class CheckpointStack(SampleStack):
    """The steps of a checkpoint, from the robot to the policy."""

    kind = "checkpoint"

    def __init__(
        self, checkpoint: Checkpoint, samples: Sequence[SampleEntries] | None = None
    ) -> None:
        if samples:
            checkpoint = _with_image_sizes(checkpoint, samples[0])
        spaces = [
            Spaces(_boxes(observations), _boxes(actions))
            for observations, actions in trace_specs(checkpoint)
        ]
        if samples is None and not spaces[0].observation and not spaces[0].action:
            raise ArgumentError(
                "the features are not known, so that no samples can be drawn",
                hint="pass recorded ones: --samples FILE.npz",
            )
        known = (*spaces[0].observation, *spaces[-1].action)
        self._missing = find_missing(known, samples[0]) if samples and known else []
        calls = checkpoint_calls(checkpoint)
        parts = [
            _StepPart(processor, step, call)
            for (processor, step), call in zip(checkpoint.stages, calls, strict=True)
        ]
        super().__init__(checkpoint, parts, spaces, samples)
        self.checkpoint = checkpoint

    @property
    def settings(self) -> Mapping[str, object]:
        """See :class:`~tdx.stacks.Stack`; the chunks of the policy, and its steps per second."""
        return self.checkpoint.settings

    @property
    def notes(self) -> Sequence[str]:
        """See :class:`~tdx.stacks.Stack`; the steps that are passed over, and missing features."""
        missing = [key for key in self._missing if key in self.source.observation_space.spaces]
        unread = [f"the samples do not have {', '.join(missing)}"] if missing else []
        opaque = [
            f"{processor.file} step {step.index} is passed over: {why_opaque(step)}"
            for processor, step in self.checkpoint.stages
            if step.name not in DEFINITIONS
        ]
        return (*self.checkpoint.notes, *opaque, *unread)


def find_missing(features: Sequence[str], sample: SampleEntries) -> list[str]:
    """Return the features that a recorded sample does not have."""
    missing = [key for key in features if key not in sample]
    if len(missing) == len(features):
        raise ArgumentError(
            f"the samples have none of the features {', '.join(features)}",
            hint=f"they have {', '.join(sample)}",
        )
    return missing


class DatasetStack(SampleStack):
    """The steps of a dataset, without any part that changes them."""

    kind = "dataset"

    def __init__(self, dataset: Dataset) -> None:
        samples = DatasetSamples(dataset)
        boxes = {key: unbounded_box(value) for key, value in samples[0].items()}
        super().__init__(dataset, (), [Spaces(boxes)], samples)

    @property
    def settings(self) -> Mapping[str, object]:
        """See :class:`~tdx.stacks.Stack`; the steps per second."""
        fps = self.original.fps
        return {} if fps is None else {"fps": fps}

    @property
    def notes(self) -> Sequence[str]:
        """See :class:`~tdx.stacks.Stack`; the images, which its steps do not have."""
        images = self.original.images
        return (f"its steps are read without images: {', '.join(images)}",) if images else ()


class _StepPart(Part):
    def __init__(self, processor: Processor, step: Step, call: str) -> None:
        self._step, self._definition = step, DEFINITIONS.get(step.name)
        self.name, self.text, self.arguments = step.short_name, call, step.config
        self.is_opaque = self._definition is None
        self.direction = "forward" if processor.role == ROLES[0] else "inverse"
        self.location = f"{processor.file}:{step.index}"
        self._states: SampleEntries = {}

    def forward(self, sample: SampleEntries) -> SampleEntries:
        if self._step.name == ABSOLUTE_ACTIONS:
            sources = {source for source, _ in relative_keys(self._step).values()}
            self._states = {key: sample[key] for key in sources if key in sample}
        return self._apply(sample) if self.direction == "forward" else sample

    def inverse(self, action: SampleEntries) -> SampleEntries:
        if self.direction == "forward":
            return action
        result = self._apply({**self._states, **action})
        return {key: result[key] for key in result if key not in self._states}

    def _apply(self, entries: SampleEntries) -> SampleEntries:
        return entries if self._definition is None else self._definition.apply(self._step, entries)

    def state(self) -> StageArrays:
        # What the modes read comes first: it is named first where checkpoints differ.
        used = {
            f"{self._step.key_of(key, feature)}.{statistic}"
            for key, feature in self._step.features.items()
            for statistic in STATISTICS.get(self._step.mode_of(key, feature), ())
        }
        state = self._step.state
        return {name: state[name] for name in sorted(state, key=lambda name: name not in used)}


def _with_image_sizes(checkpoint: Checkpoint, sample: SampleEntries) -> Checkpoint:
    """Return a checkpoint whose cameras have the sizes of a recorded sample."""
    config = checkpoint.config
    if config is None:
        return checkpoint
    inputs = {
        key: Feature(VIDEO, value.shape)
        if feature.kind == VIDEO and isinstance(value := sample.get(key), np.ndarray)
        else feature
        for key, feature in config.inputs.items()
    }
    return replace(checkpoint, config=replace(config, inputs=inputs))


def _boxes(leaves: Mapping[str, LeafSpec]) -> dict[str, Box]:
    return {key: leaf_box(leaf) for key, leaf in leaves.items()}


def leaf_box(leaf: LeafSpec) -> Box:
    """Return a spec as a space."""
    try:
        dtype = np.dtype(leaf.dtype)
    except TypeError:
        raise ArgumentError(
            f"{leaf.key!r} becomes {leaf.dtype!r}, which NumPy does not have"
        ) from None
    low, high = leaf.domain.low, leaf.domain.high
    if dtype.kind in "iu":
        # Gymnasium has no infinite bounds of integers.
        limits = np.iinfo(dtype)
        low, high = (limits.min if low is None else low), (limits.max if high is None else high)
    return Box(
        -np.inf if low is None else low,
        np.inf if high is None else high,
        leaf.shape,
        dtype.type,
    )

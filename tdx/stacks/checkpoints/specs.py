"""The specs before and after each step of a checkpoint, without running it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from tdx.foundation.errors import ArgumentError
from tdx.foundation.untrusted import MAX_DIMS
from tdx.specs.leaf import Domain, LeafSpec, Part
from tdx.stacks.checkpoints.model import VIDEO, Checkpoint, Feature, Processor, Step
from tdx.stacks.checkpoints.steps import DEFINITIONS, FeatureSpecs, rename_map, why_unchanged

MAX_NUMBERS = 2**26
"""Largest number of values in a sample, which is drawn and has bounds."""


def trace_specs(checkpoint: Checkpoint) -> list[tuple[FeatureSpecs, FeatureSpecs]]:
    """Return the specs of observations and actions at the robot, and after each stage.

    Observations pass the preprocessor, from the robot to the policy, and actions the postprocessor,
    from the policy to the robot. What observations are before the preprocessor follows from the
    policy's inputs in ``config.json``, with the renames undone.
    """
    config = checkpoint.config
    inputs = {} if config is None else dict(config.inputs)
    outputs = {} if config is None else dict(config.outputs)
    before, after = (checkpoint.processor(role) for role in ("preprocessor", "postprocessor"))
    if before is not None:
        inputs = _undo_renames(before, inputs or _declared(before, action=False))
    if after is not None:
        outputs = outputs or _declared(after, action=True)
    observations: FeatureSpecs = {
        key: _leaf("observation", key, value) for key, value in inputs.items()
    }
    lead = checkpoint.action_lead
    policy: FeatureSpecs = {
        key: _leaf("action", key, value, lead) for key, value in outputs.items()
    }
    actions = [policy]
    for step in () if after is None else after.steps:
        actions.append(_after(step, actions[-1]))
    trace = [(observations, actions[-1])]
    for processor, step in checkpoint.stages:
        if processor.role == "preprocessor":
            observations = _after(step, observations)
        else:
            # A stage takes what the step of the postprocessor receives.
            actions.pop()
        trace.append((observations, actions[-1]))
    for sides in trace:
        _check_sizes([leaf for leaves in sides for leaf in leaves.values()])
    return trace


def _check_sizes(leaves: Sequence[LeafSpec]) -> None:
    total = 0
    for leaf in leaves:
        if len(leaf.shape) > MAX_DIMS or min(leaf.shape, default=0) < 0:
            raise ArgumentError(
                f"{leaf.key!r} has the shape {list(leaf.shape)}, which no array has"
            )
        total += math.prod(leaf.shape)
        if total > MAX_NUMBERS:
            raise ArgumentError(
                f"{leaf.key!r} has the shape {list(leaf.shape)}: a sample has more than "
                f"{MAX_NUMBERS:,} numbers"
            )


def _after(step: Step, leaves: FeatureSpecs) -> FeatureSpecs:
    definition = DEFINITIONS.get(step.name)
    return leaves if definition is None else definition.specs(step, leaves)


def checkpoint_calls(checkpoint: Checkpoint) -> tuple[str, ...]:
    """Return each step as a call, in the order of the stages."""
    return tuple(
        f"{step.short_name}({', '.join(_arguments(step))})" for _, step in checkpoint.stages
    )


def _arguments(step: Step) -> Iterator[str]:
    if step.modes:
        for key, feature in step.features.items():
            mode = step.mode_of(key, feature)
            lost = why_unchanged(step, key, feature) is not None
            yield f"{key}: {mode}{' without statistics' if lost else ''}"
        return
    for name, value in step.config.items():
        if value not in (None, {}, []):
            yield f"{name}={value!r}"
    if step.name not in DEFINITIONS:
        yield "not run by tdx"


def _leaf(part: Part, key: str, feature: Feature, batch: Sequence[int] = ()) -> LeafSpec:
    if feature.kind == VIDEO:
        shape = (*batch, *feature.shape)
        return LeafSpec(part, key, "UnboundedDiscrete", shape, "uint8", "cpu", Domain())
    is_image = feature.kind == "VISUAL"
    domain = Domain(0.0, 1.0) if is_image else Domain()
    kind = "BoundedContinuous" if is_image else "UnboundedContinuous"
    return LeafSpec(part, key, kind, (*batch, *feature.shape), "float32", "cpu", domain)


def _declared(processor: Processor, *, action: bool) -> dict[str, Feature]:
    """Return the features that the steps of a processor declare, of actions or of the rest."""
    features: dict[str, Feature] = {}
    for step in processor.steps:
        features |= {
            key: feature
            for key, feature in step.features.items()
            if (feature.kind == "ACTION") is action
        }
    return features


def _undo_renames(processor: Processor, features: Mapping[str, Feature]) -> dict[str, Feature]:
    for step in reversed(processor.steps):
        back = {new: old for old, new in rename_map(step).items()}
        features = {back.get(key, key): feature for key, feature in features.items()}
    return dict(features)

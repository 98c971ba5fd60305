"""The specs of a policy checkpoint: before and after each step of its processors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

from tdx.inspection.spec_report import (
    EnvFacts,
    SpecReport,
    StageReport,
    attribute_changes,
    compare_leaves,
)
from tdx.specs.leaf import Domain, LeafSpec, Part
from tdx.stacks.checkpoints import Checkpoint, Feature, Processor, Step
from tdx.stacks.checkpoints.model import Role
from tdx.stacks.checkpoints.steps import DEFINITIONS, IDENTITY, why_unchanged

Leaves = Mapping[str, LeafSpec]


def inspect_checkpoint(checkpoint: Checkpoint, name: str | None = None) -> SpecReport:
    """Compare the specs of a checkpoint before and after its processors, without running them.

    Observations pass the preprocessor, from the robot to the policy. Actions pass the
    postprocessor, from the policy to the robot. What they are before the preprocessor follows from
    the policy's inputs in ``config.json``, with the renames undone.

    Args:
        checkpoint: The checkpoint.
        name: Name in the report. Defaults to its folder.
    """
    config = checkpoint.config
    inputs = {} if config is None else dict(config.inputs)
    outputs = {} if config is None else dict(config.outputs)
    before, after = (checkpoint.processor(role) for role in ("preprocessor", "postprocessor"))
    if before is not None:
        inputs = _undo_renames(before, inputs or _declared(before, action=False))
    if after is not None:
        outputs = outputs or _declared(after, action=True)
    observations = {key: _leaf("observation", key, value) for key, value in inputs.items()}
    actions = {key: _leaf("action", key, value, batch=(1,)) for key, value in outputs.items()}
    snapshots: list[list[LeafSpec]] = [[*observations.values(), *actions.values()]]
    names = []
    for processor in checkpoint.processors:
        for step in processor.steps:
            if processor.role == "preprocessor":
                observations = _after_step(step, observations)
            else:
                actions = _after_step(step, actions)
            snapshots.append([*observations.values(), *actions.values()])
            names.append(step.short_name)
    stages = tuple(
        StageReport(index, stage, compare_leaves(old, new, (index,)))
        for index, (stage, (old, new)) in enumerate(zip(names, pairwise(snapshots), strict=True))
    )
    changes = attribute_changes(compare_leaves(snapshots[0], snapshots[-1]), stages)
    facts = EnvFacts((), "cpu"), EnvFacts((), _last_device(checkpoint))
    return SpecReport(name or str(checkpoint.path), *facts, changes, stages)


def stage_steps(checkpoint: Checkpoint) -> tuple[tuple[Role, Step], ...]:
    """Return all steps, those of the preprocessor first, in the order of their stages."""
    return tuple(
        (processor.role, step) for processor in checkpoint.processors for step in processor.steps
    )


def checkpoint_calls(checkpoint: Checkpoint) -> tuple[str, ...]:
    """Return each step as a call, in the order of :func:`inspect_checkpoint`."""
    return tuple(
        f"{step.short_name}({', '.join(_arguments(step))})" for _, step in stage_steps(checkpoint)
    )


def _arguments(step: Step) -> Iterator[str]:
    if step.modes:
        for key, feature in step.features.items():
            mode = step.modes.get(feature.kind, IDENTITY)
            lost = why_unchanged(step, key, feature) is not None
            yield f"{key}: {mode}{' without statistics' if lost else ''}"
        return
    for name, value in step.config.items():
        if value not in (None, {}, []):
            yield f"{name}={value!r}"
    if step.name not in DEFINITIONS:
        yield "not run by tdx"


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
        names = step.config.get("rename_map")
        if isinstance(names, dict):
            back = {new: old for old, new in names.items() if isinstance(new, str)}
            features = {back.get(key, key): feature for key, feature in features.items()}
    return dict(features)


def _leaf(part: Part, key: str, feature: Feature, batch: Sequence[int] = ()) -> LeafSpec:
    is_image = feature.kind == "VISUAL"
    domain = Domain(0.0, 1.0) if is_image else Domain()
    kind = "Bounded" if is_image else "Unbounded"
    return LeafSpec(part, key, kind, (*batch, *feature.shape), "float32", "cpu", domain)


def _after_step(step: Step, leaves: Leaves) -> dict[str, LeafSpec]:
    """Return the leaves after a step; one that is not known to tdx leaves them as they are."""
    match step.name:
        case "rename_observations_processor":
            names = step.config.get("rename_map")
            names = names if isinstance(names, dict) else {}
            renamed = {key: str(names.get(key, key)) for key in leaves}
            return {renamed[key]: replace(leaf, key=renamed[key]) for key, leaf in leaves.items()}
        case "to_batch_processor" | "to_batch_processor_observation":
            return {
                key: replace(leaf, shape=(1, *leaf.shape))
                if leaf.part == "observation" and len(leaf.shape) in (1, 3)
                else leaf
                for key, leaf in leaves.items()
            }
        case "device_processor":
            device = str(step.config.get("device", "cpu"))
            dtype = step.config.get("float_dtype")
            return {
                key: replace(leaf, device=device, dtype=leaf.dtype if dtype is None else str(dtype))
                for key, leaf in leaves.items()
            }
        case "normalizer_processor" | "unnormalizer_processor":
            scaled = {
                key
                for key, feature in step.features.items()
                if step.modes.get(feature.kind, IDENTITY) != IDENTITY and key in step.statistics
            }
            return {key: _unbounded(x) if key in scaled else x for key, x in leaves.items()}
        case "image_crop_resize_processor":
            features = {
                key: Feature("VISUAL", leaf.shape)
                for key, leaf in leaves.items()
                if leaf.part == "observation"
            }
            cropped = DEFINITIONS[step.name].features(step, features)
            return {
                key: replace(leaf, shape=cropped[key].shape) if key in cropped else leaf
                for key, leaf in leaves.items()
            }
        case "xvla_imagenet_normalize" | "xvla_image_scale":
            keys = step.config.get("image_keys")
            return {
                key: _unbounded(leaf)
                if (key in keys if isinstance(keys, list) else key.startswith("observation.images"))
                else leaf
                for key, leaf in leaves.items()
            }
        case _:
            return dict(leaves)


def _unbounded(leaf: LeafSpec) -> LeafSpec:
    return replace(leaf, kind="Unbounded", domain=Domain())


def _last_device(checkpoint: Checkpoint) -> str:
    devices = [
        str(step.config.get("device", "cpu"))
        for processor in checkpoint.processors
        for step in processor.steps
        if step.name == "device_processor"
    ]
    return devices[-1] if devices else "cpu"

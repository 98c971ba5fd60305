"""The specs of a policy checkpoint: before and after each step of its processors."""

from __future__ import annotations

from itertools import pairwise

from tdx.inspection.spec_report import (
    EnvFacts,
    SpecReport,
    StageReport,
    attribute_changes,
    compare_leaves,
)
from tdx.stacks.checkpoints import Checkpoint
from tdx.stacks.checkpoints.specs import trace_specs


def inspect_checkpoint(checkpoint: Checkpoint, name: str | None = None) -> SpecReport:
    """Compare the specs of a checkpoint before and after its processors, without running them.

    It gives the same report as :func:`~tdx.inspection.spec_report.compare_specs` of its stack,
    without loading torch.

    Args:
        checkpoint: The checkpoint.
        name: Name in the report. Defaults to its folder.
    """
    snapshots = [
        [*observations.values(), *actions.values()]
        for observations, actions in trace_specs(checkpoint)
    ]
    stages = tuple(
        StageReport(index, step.short_name, compare_leaves(old, new, (index,)))
        for index, ((_, step), (old, new)) in enumerate(
            zip(checkpoint.stages, pairwise(snapshots), strict=True)
        )
    )
    changes = attribute_changes(compare_leaves(snapshots[0], snapshots[-1]), stages)
    facts = EnvFacts((), "cpu"), EnvFacts((), _last_device(checkpoint))
    return SpecReport(name or str(checkpoint.path), *facts, changes, stages)


def _last_device(checkpoint: Checkpoint) -> str:
    devices = [
        str(step.config.get("device", "cpu"))
        for processor in checkpoint.processors
        for step in processor.steps
        if step.name == "device_processor"
    ]
    return devices[-1] if devices else "cpu"

"""The specs of a policy checkpoint: before and after each step of its processors."""

from __future__ import annotations

from tdx.inspection.spec_report import EnvFacts, SpecReport, compare_snapshots
from tdx.stacks.checkpoints import Checkpoint
from tdx.stacks.checkpoints.specs import trace_specs


def inspect_checkpoint(checkpoint: Checkpoint, name: str | None = None) -> SpecReport:
    """Compare the specs of a checkpoint before and after its processors, without running them.

    It gives the same report as :func:`~tdx.inspection.spec_report.compare_specs` of its stack,
    without loading torch.
    """
    snapshots = [
        [*observations.values(), *actions.values()]
        for observations, actions in trace_specs(checkpoint)
    ]
    devices = [
        str(step.config.get("device", "cpu"))
        for processor in checkpoint.processors
        for step in processor.steps
        if step.name == "device_processor"
    ]
    facts = EnvFacts((), "cpu"), EnvFacts((), devices[-1] if devices else "cpu")
    names = [step.short_name for _, step in checkpoint.stages]
    return compare_snapshots(name or checkpoint.name, facts, names, snapshots)

"""Count what the steps of a LeRobot checkpoint do to a GPU, on a machine without one.

The steps of tdx compute with NumPy, so this runs those of LeRobot, whose lines are then named.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from tdx.foundation.errors import (
    ArgumentError,
    CodeNotAllowedError,
    MissingPackageError,
    TdxError,
    get_first_line,
    summarize_error,
)
from tdx.foundation.generators import preserved_generators
from tdx.foundation.simulated_cuda import DEVICE, SimulatedCuda
from tdx.stacks.checkpoints.model import Checkpoint, Processor, SampleEntries
from tdx.stacks.checkpoints.stack import CheckpointStack
from tdx.stacks.device_calls import MEASURING, CallCounter, DeviceCalls

if TYPE_CHECKING:
    from tdx.stacks.samples import Sample

DEVICE_STEP = "device_processor"
"""The step that moves a sample to a device."""
_WARM_UP = 2
"""Samples before the counted ones: a normalizer moves its statistics with the first one."""


def count_checkpoint_calls(
    checkpoint: Checkpoint,
    samples: Sequence[SampleEntries] | None = None,
    *,
    allow_code: bool,
    steps: int = 20,
    seed: int | None = 0,
) -> DeviceCalls:
    """Run the processors of a checkpoint with LeRobot on a simulated device.

    The preprocessor moves samples to the device, whatever device it was saved with, as LeRobot does
    where a policy runs. Actions are on the device, and the postprocessor runs as it was saved.
    """
    if checkpoint.library != "LeRobot":
        raise ArgumentError(
            f"{checkpoint.name} was saved by {checkpoint.library}, whose transforms compute with "
            "NumPy on the host",
            hint="the simulated device runs the processors of LeRobot",
        )
    if not allow_code:
        raise CodeNotAllowedError(
            f"the simulated device runs the steps of {checkpoint.name} with LeRobot, which is "
            "Python code",
            hint="add --allow-code if you trust it",
        )
    stack = CheckpointStack(checkpoint, samples)
    names = [step.short_name for _, step in checkpoint.stages]
    places = {
        (processor.file, step.index): place
        for place, (processor, step) in enumerate(checkpoint.stages)
    }
    running: int | None = None

    def current() -> tuple[str, int | None]:
        return ("processors", None) if running is None else (f"{running} {names[running]}", running)

    def run(processor: Processor, pipeline: Any, given: object) -> object:
        nonlocal running
        transition = pipeline.to_transition(given)
        for index, step in enumerate(pipeline.steps):
            running = places[processor.file, index]
            transition = step(transition)
        running = None
        return pipeline.to_output(transition)

    counter, counted = CallCounter(current), 0
    error, error_stage = None, None
    with (
        preserved_generators(),
        torch.no_grad(),
        SimulatedCuda(counter.report, skipped=MEASURING) as device,
    ):
        pipelines = _load_pipelines(checkpoint)
        has_device_step = any(
            step.name == DEVICE_STEP
            for processor in checkpoint.processors
            if processor.role == "preprocessor"
            for step in processor.steps
        )
        try:
            with stack.seeded(seed):
                stack.source.reset(seed=seed)
                for number in range(_WARM_UP + steps):
                    counter.is_counting = number >= _WARM_UP
                    for processor, pipeline in pipelines:
                        if processor.role == "preprocessor":
                            given: object = _to_tensors(stack.source.sample)
                        else:
                            with device.quiet():
                                action = _to_tensors(stack.sample_action())["action"]
                                given = action.to(DEVICE)
                        run(processor, pipeline, given)
                    counted += counter.is_counting
                    *_, is_over, _ = stack.source.step({})
                    if is_over:
                        stack.source.reset()
        except Exception as raised:
            error = raised.message if isinstance(raised, TdxError) else summarize_error(raised)
            error_stage = running
        counter.is_counting = False
    notes = [*checkpoint.notes, "the policy itself does not run"]
    if not has_device_step:
        notes.append("no step of the preprocessor moves the sample to the device")
    return counter.result(checkpoint.name, counted, 1, names, error, error_stage, tuple(notes))


def _to_tensors(sample: Sample) -> dict[str, Any]:
    """Return a sample as a robot gives it: arrays become tensors, and text stays."""
    return {
        key: torch.from_numpy(value.copy()) if isinstance(value, np.ndarray) else value
        for key, value in sample.items()
    }


def _load_pipelines(checkpoint: Checkpoint) -> list[tuple[Processor, object]]:
    """Load the processors as LeRobot does."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            from lerobot.processor import PolicyProcessorPipeline
            from lerobot.processor.converters import (
                policy_action_to_transition,
                transition_to_policy_action,
            )
            from lerobot.processor.pipeline import ProcessorStepRegistry
        except ImportError as error:
            raise MissingPackageError(
                f"the simulated device runs the steps of a checkpoint with the package "
                f"{error.name or 'lerobot'}",
                hint="install LeRobot 0.4 into the environment of tdx: pip install lerobot",
            ) from error
        known = ProcessorStepRegistry.list()
        if not all(step.is_class or step.name in known for _, step in checkpoint.stages):
            # The policies register steps of their own; some need packages that may be missing.
            with contextlib.suppress(ImportError):
                import lerobot.policies.factory  # noqa: F401
        pipelines = []
        for processor in checkpoint.processors:
            options: dict[str, object] = {}
            if processor.role == "preprocessor":
                if any(step.name == DEVICE_STEP for step in processor.steps):
                    options["overrides"] = {DEVICE_STEP: {"device": DEVICE.type}}
            else:
                options["to_transition"] = policy_action_to_transition
                options["to_output"] = transition_to_policy_action
            try:
                pipeline = PolicyProcessorPipeline.from_pretrained(
                    str(checkpoint.path),
                    config_filename=processor.file,
                    local_files_only=True,
                    **options,
                )
            except ImportError as error:
                known = ProcessorStepRegistry.list()
                unknown = [
                    s.name for s in processor.steps if not s.is_class and s.name not in known
                ]
                name = error.name or ", ".join(unknown) or get_first_line(error)
                raise MissingPackageError(
                    f"{checkpoint.name} needs {name}, which LeRobot cannot import",
                    hint="install LeRobot with the extra of this policy",
                ) from error
            except Exception as error:
                raise ArgumentError(
                    f"{checkpoint.name} cannot be loaded: {summarize_error(error)}",
                    hint="load it with the version of LeRobot that it was saved with",
                ) from error
            pipelines.append((processor, pipeline))
    return pipelines

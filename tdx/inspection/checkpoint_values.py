"""The state of a policy checkpoint's steps, and the values that they write for samples."""

from __future__ import annotations

import zipfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from tdx.foundation.errors import ArgumentError, StorageError
from tdx.inspection.checkpoint_report import inspect_checkpoint, stage_steps
from tdx.inspection.value_stats import Kind, Numbers, PhaseValues, RunningStats, StageValues
from tdx.inspection.values_report import StateEntry, StateReport, ValuesReport
from tdx.specs.leaf import LeafSpec
from tdx.stacks.checkpoints import Checkpoint, Entries, Processor
from tdx.stacks.checkpoints.model import Array
from tdx.stacks.checkpoints.steps import run

MAX_SAMPLES_BYTES = 2**31


def checkpoint_state(checkpoint: Checkpoint) -> StateReport:
    """Return the tensors that the steps of a checkpoint keep: statistics, mostly."""
    entries = [
        StateEntry(index, step.short_name, name, torch.from_numpy(value.copy()))
        for index, (_, step) in enumerate(stage_steps(checkpoint))
        for name, value in step.state.items()
    ]
    return StateReport(str(checkpoint.path), 0, tuple(entries))


def draw_samples(checkpoint: Checkpoint, count: int, seed: int = 0) -> list[Entries]:
    """Draw samples of the features: from their bounds, or from a standard normal distribution.

    Args:
        checkpoint: Its features are those before the preprocessor, and those of the policy's
            output.
        count: Number of samples.
        seed: Seed of the draws.
    """
    rng = np.random.default_rng(seed)
    leaves = [change.before for change in inspect_checkpoint(checkpoint).changes]
    return [
        {str(leaf.key): _draw(leaf, rng) for leaf in leaves if leaf is not None}
        for _ in range(count)
    ]


def _draw(leaf: LeafSpec, rng: np.random.Generator) -> Array:
    drawn = rng.random(leaf.shape) if leaf.kind == "Bounded" else rng.normal(size=leaf.shape)
    return drawn.astype(np.float32)


def read_samples(path: str | Path) -> list[Entries]:
    """Read samples from an ``.npz`` or ``.safetensors`` file: arrays ``[N, ...]`` by key.

    Raises:
        StorageError: The file cannot be read, or its arrays have different lengths.
    """
    path = Path(path)
    try:
        if path.stat().st_size > MAX_SAMPLES_BYTES:
            raise StorageError(f"{path} has more than {MAX_SAMPLES_BYTES:,} bytes")
        if path.suffix == ".safetensors":
            from safetensors.numpy import load_file

            arrays = dict(load_file(path))
        else:
            with np.load(path, allow_pickle=False) as file:
                arrays = {name: file[name] for name in file.files}
    except (OSError, ValueError, KeyError, AttributeError, zipfile.BadZipFile) as error:
        raise StorageError(
            f"{path} has no samples: {error}", hint="save them with numpy.savez(path, **arrays)"
        ) from error
    lengths = {name: len(array) if array.ndim else 0 for name, array in arrays.items()}
    if not lengths or len(set(lengths.values())) > 1 or 0 in lengths.values():
        listed = ", ".join(f"{name!r}: {length}" for name, length in lengths.items()) or "none"
        raise StorageError(
            f"the arrays of {path} do not have one number of samples: {listed}",
            hint="the first dimension of each array is the sample",
        )
    count = next(iter(lengths.values()))
    return [{name: array[index] for name, array in arrays.items()} for index in range(count)]


def checkpoint_values(checkpoint: Checkpoint, samples: Sequence[Entries]) -> ValuesReport:
    """Run samples through the processors, and report the values that each step writes.

    Observations pass the preprocessor. The action of a sample passes the preprocessor too, as in
    the training, and apart from it the postprocessor, as if the policy had returned it.

    Args:
        checkpoint: The checkpoint.
        samples: Values by key.

    Raises:
        ArgumentError: A step cannot process a sample.
    """
    keys = dict.fromkeys(key for sample in samples for key in sample)
    inputs = {key: RunningStats(key, None) for key in keys}
    written: list[dict[str, RunningStats]] = [{} for _ in stage_steps(checkpoint)]
    error = None
    done = 0
    try:
        for sample in samples:
            for key, value in sample.items():
                inputs[key].add(Numbers(_tensor(value)))
            first = 0
            for processor in checkpoint.processors:
                _add_run(processor, sample, written[first:])
                first += len(processor.steps)
            done += 1
    except ArgumentError as raised:
        error = raised
    stages = [_stage_values(None, "sample", inputs)]
    stages += [
        _stage_values(index, step.short_name, written[index])
        for index, (_, step) in enumerate(stage_steps(checkpoint))
    ]
    phase = PhaseValues("step", 0, done, tuple(stages))
    return ValuesReport(str(checkpoint.path), (), done, 0, (phase,), (), error)


def _add_run(
    processor: Processor, sample: Entries, written: Sequence[dict[str, RunningStats]]
) -> None:
    """Add what each step of a processor writes, or passes on after it has written it once."""
    if processor.role == "postprocessor":
        sample = {key: value for key, value in sample.items() if key == "action"}
        if not sample:
            return
    samples = run(processor, sample).samples
    for step, before, after in zip(processor.steps, samples, samples[1:], strict=False):
        for key, value in after.items():
            is_changed = key not in before or before[key] is not value
            stats = written[step.index]
            if is_changed or key in stats:
                running = stats.setdefault(key, RunningStats(key, None))
                running.add(Numbers(_tensor(value)), is_changed=is_changed)


def _stage_values(index: int | None, name: str, written: dict[str, RunningStats]) -> StageValues:
    values = tuple(
        running.result(key, None, is_stage=index is not None) for key, running in written.items()
    )
    kind: Kind = "env" if index is None else "stage"
    return StageValues(kind, index, name, "forward", values, (), ())


def _tensor(value: object) -> object:
    return torch.from_numpy(value.copy()) if isinstance(value, np.ndarray) else value

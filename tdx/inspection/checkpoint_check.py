"""Check a policy checkpoint: its processors against its configuration and against themselves."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import TYPE_CHECKING

import numpy as np

from tdx.compare.orders import find_order
from tdx.foundation.errors import Where
from tdx.foundation.text import unwrap_paragraphs
from tdx.inspection.check_report import CheckReport, Finding
from tdx.inspection.checkpoint_codes import CHECKPOINT_RULES, CheckpointRule
from tdx.inspection.lint.rule import is_selected
from tdx.stacks.checkpoints import Checkpoint, Feature, Processor, SampleEntries, Step
from tdx.stacks.checkpoints.model import IDENTITY
from tdx.stacks.checkpoints.scaling import STATISTICS, UNSCALED
from tdx.stacks.checkpoints.steps import ACTION, DEFINITIONS, why_opaque

if TYPE_CHECKING:
    from pathlib import Path

    from tdx.foundation.array_files import Array

TINY_STD = 1e-4
"""A standard deviation below it amplifies noise; features are of the order of 1."""
TINY_IMAGE_STD = 0.02
"""Of an image in 0 … 1: the deviation of a camera's pixels is about 0.2."""


@dataclass(frozen=True, slots=True)
class CheckpointViolation:
    """A violation of a rule by a step, or without one by the checkpoint as a whole."""

    message: str
    hint: str | None = None
    processor: Processor | None = None
    step: Step | None = None
    key: str | None = None


Mismatch = tuple[CheckpointRule, CheckpointViolation]


def mismatch(
    rule: CheckpointRule, message: str, hint: str | None = None, *, key: str | None = None
) -> Mismatch:
    """Return a violation by what has no steps: a dataset or a descriptor."""
    return rule, CheckpointViolation(message, hint, key=key)


def check_checkpoint(
    checkpoint: Checkpoint, select: Sequence[str] = (), ignore: Sequence[str] = ()
) -> CheckReport:
    """Check the processors of a checkpoint against its configuration and against themselves.

    Without ``select``, a sequence of prefixes of codes, all rules apply.
    """
    return checkpoint_report(checkpoint, (), select, ignore)


def check_on_accelerator(
    report: CheckReport,
    checkpoint: Checkpoint,
    select: Sequence[str] = (),
    ignore: Sequence[str] = (),
    *,
    allow_code: bool,
    samples: Sequence[SampleEntries] | None = None,
) -> CheckReport:
    """Add what the rules about accelerators find when LeRobot runs the steps on a simulated one.

    Without samples, they are drawn from the features.
    """
    from tdx.inspection.lint.context import DeviceContext
    from tdx.inspection.lint.linter import all_rules, lint
    from tdx.stacks.checkpoints.device_calls import DEVICE_STEP, count_checkpoint_calls

    rules = [rule for rule in all_rules() if is_selected(rule.code, select, ignore)]
    calls = count_checkpoint_calls(checkpoint, samples, allow_code=allow_code)
    names = [step.short_name for _, step in checkpoint.stages]
    transfers = [i for i, (_, step) in enumerate(checkpoint.stages) if step.name == DEVICE_STEP]
    found = []
    for match in lint(DeviceContext(calls, 0, names, transfers=transfers), rules):
        place = match.violation.stage
        where = Where()
        if place is not None:
            processor, step = checkpoint.stages[place]
            where = Where(step.index, step.short_name, file=checkpoint.file_name(processor))
        found.append(Finding.from_lint_at(match, where))
    notes = [note for note in calls.notes if note not in report.hidden]
    return report.with_accelerator(found, notes)


def check_stages(checkpoint: Checkpoint) -> tuple[Finding, ...]:
    """Return the findings of all rules, by stage of the stack instead of file and step.

    Example:
        >>> from tdx.stacks.checkpoints import read_checkpoint
        >>> checkpoint = read_checkpoint("sample_pipelines/checkpoints/renamed_statistics")
        >>> [(finding.code, finding.where.stage) for finding in check_stages(checkpoint)]
        [('TDX601', 3), ('TDX601', 5)]
    """
    places = {
        (checkpoint.file_name(processor), step.index): place
        for place, (processor, step) in enumerate(checkpoint.stages)
    }
    findings = []
    for finding in check_checkpoint(checkpoint).findings:
        where = finding.where
        place = None if where.stage is None else places.get((where.file or "", where.stage))
        findings.append(replace(finding, where=replace(where, stage=place, file=None)))
    return tuple(sorted(findings, key=lambda finding: finding.where.stage or 0))


def checkpoint_report(
    checkpoint: Checkpoint,
    further: Sequence[Mismatch],
    select: Sequence[str],
    ignore: Sequence[str],
) -> CheckReport:
    """Return the report of the rules about checkpoints, and of further violations."""
    violations = [
        *((rule, v) for rule in CHECKPOINT_RULES for v in _FINDERS[rule.code](checkpoint)),
        *further,
    ]
    findings = select_findings(violations, select, ignore, checkpoint=checkpoint)
    findings.sort(key=lambda finding: (finding.where.file or "", finding.where.stage or 0))
    stages = sum(len(processor.steps) for processor in checkpoint.processors)
    opaque = [
        f"{processor.role} step {step.index} is passed over: {why_opaque(step)}"
        for processor in checkpoint.processors
        for step in processor.steps
        if step.name not in DEFINITIONS
    ]
    return CheckReport(
        checkpoint.name,
        stages,
        ("lints",),
        tuple(findings),
        # Not checked: then the report does not say that all checks passed.
        hidden=(*checkpoint.notes, *opaque),
    )


def select_findings(
    violations: Iterable[Mismatch],
    select: Sequence[str],
    ignore: Sequence[str],
    *,
    checkpoint: Checkpoint | None = None,
    file: Path | None = None,
) -> list[Finding]:
    """Return the violations of the selected rules as findings."""
    findings = []
    for rule, violation in violations:
        if not is_selected(rule.code, select, ignore):
            continue
        step, processor = violation.step, violation.processor
        path = None if file is None else str(file)
        if processor is not None and checkpoint is not None:
            path = checkpoint.file_name(processor)
        where = Where(
            None if step is None else step.index,
            None if step is None else step.short_name,
            violation.key,
            file=path,
        )
        findings.append(
            Finding(
                *("lints", rule.code, violation.message, violation.hint, where, None),
                *(rule.severity, rule.title, unwrap_paragraphs(rule.why)[0]),
            )
        )
    return findings


# ------------------------------------------------------------------------------------ helpers


def normalizers(checkpoint: Checkpoint) -> Iterator[tuple[Processor, Step]]:
    """Yield the steps that normalize or unnormalize."""
    for processor in checkpoint.processors:
        for step in processor.steps:
            if step.modes:
                yield processor, step


def normalized_features(step: Step) -> Iterator[tuple[str, Feature, str]]:
    """Yield the features that a normalizer is meant to normalize: key, feature and mode."""
    chosen = step.config.get("normalize_observation_keys")
    for key, feature in step.features.items():
        mode = step.mode_of(key, feature)
        is_action = feature.kind == "ACTION"
        if mode in UNSCALED or (not is_action and isinstance(chosen, list) and key not in chosen):
            continue
        yield step.key_of(key, feature), feature, mode


def _normalized(checkpoint: Checkpoint) -> Iterator[tuple[Processor, Step, str, Feature, str]]:
    """Yield what all normalizers are meant to normalize: the step, and key, feature and mode."""
    for processor, step in normalizers(checkpoint):
        for key, feature, mode in normalized_features(step):
            yield processor, step, key, feature, mode


def _names(keys: Sequence[str]) -> str:
    return ", ".join(map(repr, keys))


def _indices(mask: Array) -> str:
    """Return the positions of a mask's true values as text, the first five of them."""
    positions = np.flatnonzero(mask)
    text = ", ".join(map(str, positions[:5]))
    return text if len(positions) <= 5 else f"{text}, … ({len(positions)} in all)"


# ------------------------------------------------------------------------------------ rules


_NO_STATISTICS = {
    "LeRobot": "pass the statistics of the dataset: dataset_stats=dataset.meta.stats",
    "openpi": "compute them: scripts/compute_norm_stats.py of openpi",
    "GR00T": "compute them: gr00t/data/stats.py of Isaac-GR00T",
}
"""What to do without any statistics, by library."""


def _without_statistics(checkpoint: Checkpoint) -> Iterator[CheckpointViolation]:
    for processor, step in normalizers(checkpoint):
        known = list(step.statistics)
        for key, _, mode in normalized_features(step):
            if key in known:
                continue
            others = [name for name in known if name not in step.features]
            near = [name for name in others if name.endswith(f".{key}") or key.endswith(f".{name}")]
            near = near or get_close_matches(key, others, 1)
            if near:
                hint = f"the statistics have {near[0]!r}: rename it to {key!r}"
            elif known:
                hint = f"it has statistics of {_names(known[:4])}"
            else:
                hint = _NO_STATISTICS[checkpoint.library]
            yield CheckpointViolation(
                f"{key!r} passes unchanged: {mode} has no statistics of it",
                *(hint, processor, step, key),
            )


def _missing_statistic(checkpoint: Checkpoint) -> Iterator[CheckpointViolation]:
    for processor, step, key, _, mode in _normalized(checkpoint):
        statistics = step.statistics.get(key)
        if statistics is None:
            continue
        if mode not in STATISTICS:
            yield CheckpointViolation(
                f"{key!r} has the unknown mode {mode!r}",
                f"the modes are {', '.join((IDENTITY, *STATISTICS))}",
                *(processor, step, key),
            )
            continue
        missing = [name for name in STATISTICS[mode] if name not in statistics]
        if missing:
            yield CheckpointViolation(
                f"{mode} needs {_names(missing)} of {key!r}, and there are "
                f"{_names(list(statistics))}",
                "compute the statistics of the dataset again",
                *(processor, step, key),
            )


def _other_shape(checkpoint: Checkpoint) -> Iterator[CheckpointViolation]:
    for processor, step, key, feature, mode in _normalized(checkpoint):
        statistics = step.statistics.get(key, {})
        for name in STATISTICS.get(mode, ()):
            array = statistics.get(name)
            if array is None or _broadcasts(array.shape, feature.shape):
                continue
            yield CheckpointViolation(
                f"{name!r} of {key!r} has shape {list(array.shape)}, and the feature has "
                f"{list(feature.shape)}",
                None,
                *(processor, step, key),
            )
            break


def _broadcasts(shape: tuple[int, ...], target: tuple[int, ...]) -> bool:
    try:
        return np.broadcast_shapes(shape, target) == target
    except ValueError:
        return False


def _tiny_width(checkpoint: Checkpoint) -> Iterator[CheckpointViolation]:
    for processor, step, key, feature, used in _normalized(checkpoint):
        if processor.role != "preprocessor":
            continue
        statistics = step.statistics.get(key, {})
        for mode in step.possible_modes(key, feature):
            arrays = [statistics.get(name) for name in STATISTICS.get(mode, ())]
            low, high = arrays if len(arrays) == 2 else (None, None)
            if low is None or high is None or low.shape != high.shape:
                continue
            is_std = mode == "MEAN_STD"
            limit = TINY_IMAGE_STD if is_std and feature.kind == "VISUAL" else TINY_STD
            width = np.abs(high if is_std else high - low)
            if step.name.startswith("groot"):
                # A feature that was constant becomes zero, or stays as it is.
                width = np.where(width == 0, np.inf, width)
            mask = width < limit
            if mask.any():
                what = "a standard deviation" if is_std else "a range"
                what += "" if mode == used else f" of quantiles ({mode})"
                smallest = float(width.min())
                yield CheckpointViolation(
                    f"{key!r} has {what} of {smallest:.3g} at {_indices(mask)}: what differs "
                    f"from training is amplified by {1 / max(smallest, 1e-8):.3g}",
                    "record data in which this feature moves, or leave it out",
                    *(processor, step, key),
                )
                break


def _contradicting(checkpoint: Checkpoint) -> Iterator[CheckpointViolation]:
    for processor, step in normalizers(checkpoint):
        for key, statistics in step.statistics.items():
            reason = why_impossible(statistics)
            if reason is not None:
                yield CheckpointViolation(
                    f"the statistics of {key!r} cannot be those of one dataset: {reason}",
                    "compute them again from the data: statistics of parts were merged wrongly, or "
                    "are stale",
                    *(processor, step, key),
                )


def why_impossible(statistics: Mapping[str, Array]) -> str | None:
    """Return why no data has these statistics; ``None`` if some data has.

    Quantiles increase from the minimum to the maximum, a mean lies between them, and a standard
    deviation is at most half of the range (Popoviciu's inequality).

    Example:
        >>> why_impossible({"min": np.array([0.0]), "max": np.array([1.0]), "std": np.array([2.0])})
        'the standard deviation at 0 is 2, more than half of the range 1'
    """
    arrays = {
        name: np.asarray(array, np.float64).ravel()
        for name, array in statistics.items()
        if np.issubdtype(array.dtype, np.number)
    }
    for name, array in arrays.items():
        if not np.isfinite(array).all():
            return f"{name} at {_indices(~np.isfinite(array))} is not finite"
    if "std" in arrays and (arrays["std"] < 0).any():
        return f"the standard deviation at {_indices(arrays['std'] < 0)} is negative"
    order = [name for name in ("min", "q01", "q10", "q50", "q90", "q99", "max") if name in arrays]
    pairs: list[tuple[str, str]] = list(itertools.pairwise(order))
    if "min" in arrays and "max" in arrays:
        pairs += [("min", "mean"), ("mean", "max")]
    for low, high in pairs:
        if low not in arrays or high not in arrays or arrays[low].shape != arrays[high].shape:
            continue
        scale = np.maximum(np.abs(arrays[low]), np.abs(arrays[high]))
        mask = arrays[low] > arrays[high] + 1e-5 * scale + 1e-7
        if mask.any():
            at = int(np.flatnonzero(mask)[0])
            return (
                f"{low} at {at} is {arrays[low][at]:.4g}, more than {high}, {arrays[high][at]:.4g}"
            )
    if {"min", "max", "std"} <= arrays.keys():
        span = arrays["max"] - arrays["min"]
        if span.shape == arrays["std"].shape:
            mask = arrays["std"] > span / 2 * (1 + 1e-4) + 1e-6
            if mask.any():
                at = int(np.flatnonzero(mask)[0])
                return (
                    f"the standard deviation at {at} is {arrays['std'][at]:.4g}, more than half of "
                    f"the range {span[at]:.4g}"
                )
    return None


def _pixel_range(checkpoint: Checkpoint) -> Iterator[CheckpointViolation]:
    for processor, step, key, feature, mode in _normalized(checkpoint):
        if feature.kind != "VISUAL":
            continue
        names = STATISTICS.get(mode, ())
        arrays = [step.statistics.get(key, {}).get(name) for name in names]
        largest = max((float(np.max(a)) for a in arrays if a is not None and a.size), default=0)
        if largest > 2:
            yield CheckpointViolation(
                f"the statistics of {key!r} are of pixels in 0 … 255 (up to {largest:.4g}), "
                "and the policy reads images in 0 … 1",
                "divide them by 255, or compute them on images that are scaled",
                *(processor, step, key),
            )


def _twice(checkpoint: Checkpoint) -> Iterator[CheckpointViolation]:
    for processor in checkpoint.processors:
        seen: dict[str, Step] = {}
        for step in processor.steps:
            for key in _scaled_keys(step, processor, checkpoint):
                if key in seen:
                    yield CheckpointViolation(
                        f"{key!r} is normalized by step {seen[key].index} "
                        f"({seen[key].short_name}) already",
                        "remove one of them, or set its mode to IDENTITY",
                        *(processor, step, key),
                    )
                seen.setdefault(key, step)


def _scaled_keys(step: Step, processor: Processor, checkpoint: Checkpoint) -> Iterator[str]:
    if step.modes:
        for key, _, _ in normalized_features(step):
            if key in step.statistics:
                yield key
    elif step.name == "xvla_imagenet_normalize":
        keys = step.config.get("image_keys")
        declared = {} if checkpoint.config is None else checkpoint.config.inputs
        for other in processor.steps:
            declared = {**declared, **other.features}
        for key, feature in declared.items():
            if feature.kind == "VISUAL" and (not isinstance(keys, list) or key in keys):
                yield key


def _other_mode(checkpoint: Checkpoint) -> Iterator[CheckpointViolation]:
    config = checkpoint.config
    if config is None or not config.modes:
        return
    for processor, step in normalizers(checkpoint):
        kinds = {feature.kind for feature in step.features.values()}
        for kind in sorted(kinds):
            declared, used = config.modes.get(kind, IDENTITY), step.modes.get(kind, IDENTITY)
            if declared != used:
                yield CheckpointViolation(
                    f"{kind} is normalized by {used}, and config.json declares {declared}",
                    "the policy was trained with one of them: save the processors of the training",
                    *(processor, step),
                )


def _other_features(checkpoint: Checkpoint) -> Iterator[CheckpointViolation]:
    config = checkpoint.config
    if config is None:
        return
    for processor, step in normalizers(checkpoint):
        inputs, outputs = config.inputs, config.outputs
        declared = outputs if processor.role == "postprocessor" else {**inputs, **outputs}
        if not declared or not step.features:
            continue
        for key, feature in declared.items():
            other = step.features.get(key)
            mode = config.modes.get(feature.kind, IDENTITY)
            if other is None and any(key in sibling.features for sibling in processor.steps):
                continue  # a reward classifier normalizes inputs and outputs in two steps
            if other is None and mode != IDENTITY:
                unknown = [name for name in step.features if name not in declared]
                near = get_close_matches(key, unknown, 1) or unknown[:1]
                yield CheckpointViolation(
                    f"{key!r}, which config.json declares as {feature}, is not one of its "
                    "features: it passes unchanged",
                    f"it knows {near[0]!r}: rename one of them (rename_map)" if near else None,
                    *(processor, step, key),
                )
            elif other is not None and other.shape != feature.shape:
                yield CheckpointViolation(
                    f"{key!r} has shape {list(other.shape)}, and {list(feature.shape)} in "
                    "config.json",
                    None,
                    *(processor, step, key),
                )


def _lost_rename(checkpoint: Checkpoint) -> Iterator[CheckpointViolation]:
    """Find rename maps whose results no later step and no policy reads."""
    config, processor = checkpoint.config, checkpoint.processor("preprocessor")
    if processor is None:
        return
    for step in processor.steps:
        names = step.config.get("rename_map")
        if step.name != "rename_observations_processor" or not isinstance(names, dict):
            continue
        later = {key for other in processor.steps[step.index + 1 :] for key in other.features}
        known = later | set(() if config is None else config.inputs)
        for old, new in names.items():
            if known and isinstance(new, str) and new not in known:
                near = get_close_matches(new, known, 1)
                yield CheckpointViolation(
                    f"{old!r} becomes {new!r}, which neither a later step nor the policy reads",
                    f"did you mean {near[0]!r}?" if near else None,
                    *(processor, step, old),
                )
    positions = [step.index for step in processor.steps if step.config.get("rename_map")]
    for step in processor.steps:
        if step.name == "normalizer_processor" and positions and step.index < positions[0]:
            yield CheckpointViolation(
                f"it runs before step {positions[0]} renames the observations: it does not see the "
                "new names",
                "move the normalizer behind the rename step",
                *(processor, step),
            )


def _not_inverted(checkpoint: Checkpoint) -> Iterator[CheckpointViolation]:
    before, after = (checkpoint.processor(role) for role in ("preprocessor", "postprocessor"))
    if before is None or after is None:
        return
    forward = [step for step in before.steps if step.name == "normalizer_processor"]
    inverse = [step for step in after.steps if step.name == "unnormalizer_processor"]
    if not forward:
        return
    entry = next((item for item in normalized_features(forward[-1]) if item[0] == ACTION), None)
    if entry is None or ACTION not in forward[-1].statistics:
        return
    mode = entry[2]
    if not inverse:
        if all(step.name in DEFINITIONS for step in after.steps):
            yield CheckpointViolation(
                f"actions are normalized by {mode} for the training, and the postprocessor has no "
                "step that undoes it: the robot gets normalized actions",
                "add an unnormalizer_processor",
                after,
                None,
                ACTION,
            )
        return
    step = inverse[0]
    used = step.modes.get("ACTION", IDENTITY)
    if used != mode:
        yield CheckpointViolation(
            f"it undoes {used} for the action, and the preprocessor normalizes by {mode}",
            None,
            *(after, step, ACTION),
        )
        return
    ours, theirs = step.statistics.get(ACTION), forward[-1].statistics[ACTION]
    if ours is None:
        return  # another rule reports it
    for name in STATISTICS.get(mode, ()):
        one, other = ours.get(name), theirs.get(name)
        if one is None or other is None or one.shape != other.shape:
            continue
        how = _differing_statistics(one, other)
        if how is not None:
            yield CheckpointViolation(
                f"it does not invert the normalizer: {name!r} of the action {how}",
                "save both processors with the statistics of the training",
                *(after, step, ACTION),
            )
            return


def _differing_statistics(one: Array, other: Array) -> str | None:
    """Return how two arrays of one shape differ; ``None`` if they agree."""
    if np.array_equal(one, other):
        return None
    # A sound checkpoint is checked without loading torch.
    import torch

    from tdx.compare.values import Tolerance, differing_elements, element_gaps

    a, b = torch.from_numpy(one).flatten(), torch.from_numpy(other).flatten()
    tolerance = Tolerance(1e-5, 1e-8)
    if not bool(differing_elements(a, b, tolerance).any()):
        return None
    differing = 2 * differing_elements(a[:, None], b, tolerance)
    if find_order(len(a), lambda first, second: int(differing[first, second])) is not None:
        return "is in another order"
    at = int(element_gaps(a, b).argmax())
    return f"has {float(a[at]):.4g} instead of {float(b[at]):.4g} at {at}"


def _missing_step(checkpoint: Checkpoint) -> Iterator[CheckpointViolation]:
    config = checkpoint.config
    if config is None or config.policy is None or config.policy not in DEFAULT_STEPS:
        return
    for processor in checkpoint.processors:
        names = [step.name for step in processor.steps]
        for name in DEFAULT_STEPS[config.policy][processor.role]:
            if name not in names:
                yield CheckpointViolation(
                    f"the {processor.role} has no {name}, which a policy of the type "
                    f"{config.policy!r} has by default",
                    "save the processors again with the version of LeRobot that trained the policy",
                    processor,
                )


def _action_steps(checkpoint: Checkpoint) -> Iterator[CheckpointViolation]:
    config = checkpoint.config
    if config is None:
        return
    steps = config.integer("n_action_steps")
    chunk = config.integer("chunk_size")
    chunk = config.integer("horizon") if chunk is None else chunk
    if steps is not None and chunk is not None and steps > chunk:
        yield CheckpointViolation(
            f"n_action_steps is {steps}, and the policy returns {chunk} actions at a time",
            f"set n_action_steps to {chunk} or less",
        )


def _delta_of_deltas(checkpoint: Checkpoint) -> Iterator[CheckpointViolation]:
    for processor, step, key, feature, _ in _normalized(checkpoint):
        if processor.role != "preprocessor" or feature.kind != "ACTION":
            continue
        # Of the same embodiment, and of the same joints where they are grouped.
        asset, _, group = key.rpartition("/")
        states = [
            name
            for name, other in step.features.items()
            if other.kind == "STATE" and name.rpartition("/")[0] == asset
        ]
        named = [name for name in states if name.rpartition(".")[2] == group.rpartition(".")[2]]
        sources = named or states
        if len(sources) != 1:
            continue
        sides = [step.statistics.get(name, {}) for name in (key, sources[0])]
        if any(name not in side or not side[name].ndim for side in sides for name in _MOMENTS):
            continue
        size = min(side[name].shape[-1] for side in sides for name in _MOMENTS)
        (mean, std), (state_mean, state_std) = (
            # Statistics of chunks have a row for each of their steps.
            [
                side[name].astype(np.float64)[..., :size].reshape(-1, size).mean(0)
                for name in _MOMENTS
            ]
            for side in sides
        )
        one_sided = (np.abs(state_mean) > state_std) & (state_std > 0)
        is_negated = one_sided & (np.abs(mean + state_mean) < 0.2 * state_std)
        is_negated &= (std > state_std / 2) & (std < state_std * 2)
        if is_negated.sum() >= max(2, one_sided.sum() / 2):
            yield CheckpointViolation(
                f"the means of {key!r} are those of {sources[0]!r} with the opposite sign, at "
                f"{_indices(is_negated)}: the state was subtracted from actions that are deltas",
                "compute deltas once: the actions of the dataset are deltas already",
                *(processor, step, key),
            )


_MOMENTS = ("mean", "std")
_COMMON = ("rename_observations_processor", "to_batch_processor", "normalizer_processor")
_FURTHER_STEPS: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("act", "diffusion", "sac", "tdmpc", "vqbet"), ()),
    "pi0": ("pi0_new_line_processor", "tokenizer_processor"),
    "pi05": ("pi05_prepare_state_tokenizer_processor_step", "tokenizer_processor"),
    "pi0_fast": (
        "pi0_fast_prepare_state_tokenizer_processor_step",
        "tokenizer_processor",
        "action_tokenizer_processor",
    ),
    "smolvla": ("smolvla_new_line_processor", "tokenizer_processor"),
    "wall_x": ("wall_x_task_processor",),
    "xvla": (
        "tokenizer_processor",
        "xvla_image_to_float",
        "xvla_imagenet_normalize",
        "xvla_add_domain_id",
    ),
}
DEFAULT_STEPS: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    **{
        policy: {
            "preprocessor": (*_COMMON, *further),
            "postprocessor": ("unnormalizer_processor",),
        }
        for policy, further in _FURTHER_STEPS.items()
    },
    "reward_classifier": {"preprocessor": ("normalizer_processor",), "postprocessor": ()},
    "sarm": {"preprocessor": _COMMON, "postprocessor": ()},
    "groot": {
        "preprocessor": (
            "rename_observations_processor",
            "to_batch_processor",
            "groot_pack_inputs_v3",
            "groot_eagle_encode_v3",
            "groot_eagle_collate_v3",
        ),
        "postprocessor": ("groot_action_unpack_unnormalize_v1",),
    },
}
"""Steps that LeRobot 0.4.4 gives a policy of each type; the device step changes no values."""

_FINDERS: Mapping[str, Callable[[Checkpoint], Iterator[CheckpointViolation]]] = {
    "TDX601": _without_statistics,
    "TDX602": _missing_statistic,
    "TDX603": _other_shape,
    "TDX604": _tiny_width,
    "TDX605": _contradicting,
    "TDX606": _pixel_range,
    "TDX607": _twice,
    "TDX608": _other_mode,
    "TDX609": _other_features,
    "TDX610": _lost_rename,
    "TDX611": _not_inverted,
    "TDX612": _missing_step,
    "TDX613": _action_steps,
    "TDX614": _delta_of_deltas,
}
"""What finds the violations of each rule that needs no data."""

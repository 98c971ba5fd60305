"""Compute the statistics of a dataset; check what it and a checkpoint store against them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np

from tdx.compare.orders import find_order
from tdx.foundation.serialization import Entries, Entry, Result
from tdx.inspection.check_report import CheckReport
from tdx.inspection.checkpoint_check import (
    TINY_IMAGE_STD,
    TINY_STD,
    CheckpointViolation,
    Mismatch,
    checkpoint_report,
    mismatch,
    normalized_features,
    normalizers,
    select_findings,
    why_impossible,
)
from tdx.inspection.checkpoint_codes import (
    CONSTANT,
    NOT_FINITE,
    NOT_IN_DATA,
    OTHER_DATA,
    OTHER_FPS,
    OUTSIDE_SPEC,
    PIXELS,
    STALE,
)
from tdx.stacks.checkpoints import Checkpoint, Dataset
from tdx.stacks.checkpoints.dataset import (
    QUANTILES,
    Progress,
    RunningStatistics,
    compute_statistics,
)
from tdx.stacks.checkpoints.frames import SampledImages, sample_images
from tdx.stacks.checkpoints.lerobot_data import STATS
from tdx.stacks.checkpoints.openpi import NAMES_IN_DATA
from tdx.stacks.checkpoints.scaling import STATISTICS
from tdx.stacks.checkpoints.steps import IMAGENET_MEAN, IMAGENET_STD, SCALES_PIXELS

if TYPE_CHECKING:
    from tdx.foundation.array_files import Array

TOLERANCE = 0.01
"""Share of the standard deviation or of the range by which statistics may differ from the data."""
IMAGE_TOLERANCE = 0.1
"""Difference from the sampled images, in 0 … 1, by which their statistics may differ."""
RANK_TOLERANCE = 0.02
"""Share of the steps by which a quantile may be off; the sketch is off by 0.4 % at most."""


_QUANTILES = ("q01", "q10", "q50", "q90", "q99")


@dataclass(frozen=True, slots=True)
class ComponentStatistics(Result):
    """Statistics of one number of a feature, or of one channel of its images.

    Args:
        index: Index of the number in the flattened feature, or of the channel.
        name: Name that the dataset declares; ``None`` if it declares none.
        mean: Mean.
        std: Standard deviation.
        minimum: Minimum.
        q01: First percentile; ``None`` for images, like all quantiles.
        q10: 10th percentile.
        q50: Median.
        q90: 90th percentile.
        q99: 99th percentile.
        maximum: Maximum.
    """

    json_entries: ClassVar[Entries] = (
        *("index", "name", "mean", "std", Entry("min", "minimum")),
        *(*_QUANTILES, Entry("max", "maximum")),
    )

    index: int
    name: str | None
    mean: float
    std: float
    minimum: float
    q01: float | None
    q10: float | None
    q50: float | None
    q90: float | None
    q99: float | None
    maximum: float


@dataclass(frozen=True, slots=True)
class FeatureStatistics(Result):
    """Statistics of a feature over all steps of a dataset, or over a sample of its images.

    Args:
        key: The feature.
        dtype: Such as ``float32``, ``video`` or ``image``.
        shape: Shape of one step.
        is_image: True for images and videos, of which a sample is read. Numbers of 8 bits are
            scaled to 0 … 1.
        read: Number of steps or frames that were read.
        total: Number of steps or frames of the dataset.
        nonfinite: Number of those read that have NaN or infinite values. They are left out; of
            images, only their pixels.
        components: Statistics of each number or channel; empty if nothing finite was read.
        stored: Whether the statistics that the dataset stores are those of its data. ``None``:
            there is nothing to compare.
        difference: How the stored statistics differ.
        skipped: Why no frame was read; ``None`` if some were.
    """

    key: str
    dtype: str
    shape: tuple[int, ...]
    is_image: bool
    read: int
    total: int
    nonfinite: int
    components: tuple[ComponentStatistics, ...]
    stored: Literal["agree", "differ", "missing"] | None
    difference: str | None
    skipped: str | None


@dataclass(frozen=True, slots=True)
class DatasetFacts(Result):
    """A dataset with the statistics of its data.

    Args:
        dataset: The dataset.
        computed: Statistics that were computed from the data, by feature.
        images: Statistics of some of its images, by feature.
        skipped: Why the other images were not decoded, by feature.
    """

    json_entries: ClassVar[Entries] = (
        *(Entry("dataset", "dataset.path"), Entry("title", "dataset.title")),
        *(Entry("steps", "dataset.steps"), Entry("fps", "dataset.fps"), "features"),
    )

    dataset: Dataset
    computed: Mapping[str, RunningStatistics]
    images: Mapping[str, SampledImages] = field(default_factory=dict)
    skipped: Mapping[str, str] = field(default_factory=dict)

    @property
    def not_checked(self) -> tuple[str, ...]:
        """What was not checked, and why."""
        return tuple(f"{key} was not decoded: {reason}" for key, reason in self.skipped.items())

    def stored(self, key: str) -> Mapping[str, Array]:
        """Return the statistics that the dataset stores of a feature; empty if there are none."""
        return (self.dataset.stored or {}).get(key, {})

    def difference(self, key: str) -> str | None:
        """Return how the stored statistics of a feature differ from its data; ``None`` if not."""
        stored = self.stored(key)
        if (sample := self.images.get(key)) is not None:
            return why_impossible(stored) or why_not_of_images(stored, sample)
        data = self.computed[key]
        for name, expected in data.result().items():
            if name in stored and name != "count" and stored[name].size != expected.size:
                return f"{name} has {stored[name].size} numbers instead of {expected.size}"
        return why_not_of_data(stored, data, self.dataset.features[key].names)

    @property
    def features(self) -> tuple[FeatureStatistics, ...]:
        """Statistics of each feature that was read, and of the images that were not decoded."""
        keys = {*self.computed, *self.images, *self.skipped}
        return tuple(self._feature(key) for key in self.dataset.features if key in keys)

    def _feature(self, key: str) -> FeatureStatistics:
        feature, steps = self.dataset.features[key], self.dataset.steps
        statistics: Mapping[str, Array] = {}
        read = nonfinite = 0
        if (data := self.computed.get(key)) is not None:
            statistics, nonfinite = data.result(), data.nonfinite
            read = data.count + nonfinite
            steps = max(steps, read)
        elif (sample := self.images.get(key)) is not None:
            statistics, nonfinite = sample.statistics, sample.nonfinite
            read, steps = sample.frames, sample.total
        components: list[ComponentStatistics] = []
        if statistics:
            width = statistics["mean"].size
            # The names of an image are those of its axes.
            is_named = not feature.is_image and len(feature.names) == width
            names = feature.names if is_named else (None,) * width
            columns = [
                statistics[name].tolist() if name in statistics else [None] * width
                for name in ("mean", "std", "min", *_QUANTILES, "max")
            ]
            rows = zip(names, *columns, strict=True)
            components = [ComponentStatistics(index, *row) for index, row in enumerate(rows)]
        stored: Literal["agree", "differ", "missing"] | None = None
        difference = None
        if components and self.dataset.stored is not None:
            difference = self.difference(key)
            stored = "agree" if difference is None else "differ"
            stored = stored if self.stored(key) else "missing"
        return FeatureStatistics(
            key=key,
            dtype=feature.dtype,
            shape=feature.shape,
            is_image=feature.is_image,
            read=read,
            total=steps,
            nonfinite=nonfinite,
            components=tuple(components),
            stored=stored,
            difference=difference,
            skipped=self.skipped.get(key),
        )


def read_facts(
    dataset: Dataset, keys: Sequence[str] | None = None, on_progress: Progress | None = None
) -> DatasetFacts:
    """Compute the statistics of a dataset: in one pass over its numbers, and of sampled images.

    Raises:
        MissingPackageError: A package that reads its numbers is not installed.
        StorageError: A file cannot be read, or has another form than declared.
    """
    computed = compute_statistics(dataset, keys, on_progress)
    return DatasetFacts(dataset, computed, *sample_images(dataset))


def check_dataset(
    facts: DatasetFacts,
    select: Sequence[str] = (),
    ignore: Sequence[str] = (),
    outside: Sequence[str] = (),
) -> CheckReport:
    """Check what a dataset stores against its data.

    ``outside`` has a sentence for each value that the specs do not allow.
    """
    violations = (
        *_stale(facts),
        *_not_finite(facts),
        *_suspicious(facts),
        *(mismatch(OUTSIDE_SPEC, sentence) for sentence in outside),
    )
    findings = select_findings(violations, select, ignore)
    steps = max((data.count + data.nonfinite for data in facts.computed.values()), default=0)
    parts = f"{steps:,} steps of {len(facts.computed)} features"
    for key, sample in facts.images.items():
        parts += f", {sample.frames} of {sample.total:,} frames of {key}"
    path, hidden = str(facts.dataset.path), facts.not_checked
    return CheckReport(path, 0, ("lints",), tuple(findings), hidden=hidden, parts=parts)


def check_against_data(
    checkpoint: Checkpoint,
    facts: DatasetFacts | None,
    samples: DatasetFacts | None = None,
    select: Sequence[str] = (),
    ignore: Sequence[str] = (),
) -> CheckReport:
    """Check a checkpoint, and the statistics of its normalizers against a dataset.

    ``facts`` are those of the data of the training or fine-tuning. Of ``samples``, those of the
    deployment, only the range of images is checked.
    """
    further: list[Mismatch] = []
    if facts is not None:
        further += [
            *((OTHER_DATA, violation) for violation in _other_data(checkpoint, facts)),
            *((NOT_IN_DATA, violation) for violation in _not_in_data(checkpoint, facts.dataset)),
            *((OTHER_FPS, violation) for violation in _other_fps(checkpoint, facts.dataset)),
            *_stale(facts),
            *_not_finite(facts),
        ]
    given = [source for source in (facts, samples) if source is not None]
    for source in given:
        further += _unscaled_images(checkpoint, source)
    report = checkpoint_report(checkpoint, further, select, ignore)
    not_checked = [reason for source in given for reason in source.not_checked]
    return replace(report, hidden=(*report.hidden, *not_checked))


def _unscaled_images(checkpoint: Checkpoint, facts: DatasetFacts) -> Iterator[Mismatch]:
    """Yield the images of a policy whose numbers are not scaled to 0 … 1, and stay so."""
    processor = checkpoint.processor("preprocessor")
    steps = () if processor is None else processor.steps
    if any(step.name == SCALES_PIXELS for step in steps):
        return
    for key, feature in ({} if checkpoint.config is None else checkpoint.config.inputs).items():
        sample = facts.images.get(_name_in_data(checkpoint, key))
        if feature.kind == "VISUAL" and sample is not None and sample.is_in_pixels:
            yield (
                PIXELS,
                CheckpointViolation(
                    f"{key!r} has numbers up to {sample.statistics['max'].max():.4g} in "
                    f"{sample.frames} of {sample.total:,} frames of {facts.dataset.path}, and the "
                    "policy reads images in 0 … 1",
                    "divide them by 255, or pass them as uint8, which LeRobot scales itself",
                    key=key,
                ),
            )


def _other_data(checkpoint: Checkpoint, facts: DatasetFacts) -> Iterator[CheckpointViolation]:
    for processor, step in normalizers(checkpoint):
        for key, feature_of_policy, mode in normalized_features(step):
            if checkpoint.library == "openpi" and feature_of_policy.kind == "ACTION":
                continue  # they may be those of deltas
            name = _name_in_data(checkpoint, key)
            statistics = step.statistics.get(key)
            feature = facts.dataset.features.get(name)
            if statistics is None or feature is None:
                continue  # other rules report them
            how = None
            used = {s: statistics[s] for s in STATISTICS.get(mode, ()) if s in statistics}
            if name in facts.computed:
                how = why_not_of_data(used, facts.computed[name], feature.names)
            elif name in facts.images:
                sample = facts.images[name]
                # Those in 0 … 255 have a finding of their own.
                if not _is_imagenet(used) and not sample.is_in_pixels:
                    how = why_not_of_images(used, sample)
            elif not (feature.is_image and _is_imagenet(used)):
                how = _why_not_of_dataset(used, facts.stored(name))
            if how is not None:
                yield CheckpointViolation(
                    f"the statistics of {key!r} are not those of the dataset: {how}",
                    "normalize with the statistics that the policy was trained with",
                    *(processor, step, key),
                )


def _not_in_data(checkpoint: Checkpoint, dataset: Dataset) -> Iterator[CheckpointViolation]:
    config = checkpoint.config
    if config is None:
        return
    for key, feature in {**config.inputs, **config.outputs}.items():
        name = _name_in_data(checkpoint, key)
        known = dataset.features.get(name)
        if known is None:
            if not dataset.vectors and feature.kind == "VISUAL":
                continue  # openpi has no statistics of images
            others = [other for other in dataset.features if other.startswith("observation")]
            others = others or list(dataset.features)
            yield CheckpointViolation(
                f"the policy reads {name!r}, which the dataset does not have",
                f"the dataset has {', '.join(map(repr, others))}: rename one of them (rename_map)",
                key=key,
            )
            continue
        shape = known.shape
        if known.is_image and len(shape) == 3:
            shape = (shape[2], *shape[:2]) if shape[0] > shape[2] else shape
        if shape != feature.shape and not known.is_image:
            yield CheckpointViolation(
                f"{key!r} has shape {list(feature.shape)} in config.json, and {list(shape)} in the "
                "dataset",
                key=key,
            )


def _other_fps(checkpoint: Checkpoint, dataset: Dataset) -> Iterator[CheckpointViolation]:
    ours, theirs = checkpoint.fps, dataset.fps
    if ours is not None and theirs is not None and abs(ours - theirs) > 0.01 * theirs:
        yield CheckpointViolation(
            f"the policy has {ours:g} steps per second, and the dataset has {theirs:g}",
            f"run the policy {theirs:g} times per second if this is the data of its training",
        )


def _name_in_data(checkpoint: Checkpoint, key: str) -> str:
    """Return the name of a feature in datasets: before the preprocessor renames it."""
    if checkpoint.library == "openpi":
        return NAMES_IN_DATA.get(key, key)
    processor = checkpoint.processor("preprocessor")
    for step in reversed(() if processor is None else processor.steps):
        names = step.config.get("rename_map")
        if isinstance(names, dict):
            key = next((old for old, new in names.items() if new == key), key)
    return key


def why_not_of_data(
    statistics: Mapping[str, Array], data: RunningStatistics, names: Sequence[str] = ()
) -> str | None:
    """Return how statistics differ from those of the data; ``None`` if they do not.

    This is a test of estimates and not a comparison of values, as in :mod:`tdx.compare.values`:
    means and standard deviations may be off by a share of the standard deviation of the data,
    extremes by one of the range, and quantiles by a share of the steps.
    """
    truth = data.result()
    if not truth:
        return None
    std, span = truth["std"], truth["max"] - truth["min"]
    worst: tuple[float, str] | None = None
    for name, value in statistics.items():
        expected = truth.get(name)
        value = np.asarray(value, np.float64).ravel()
        if expected is None or name == "count" or value.shape != expected.shape:
            continue
        if name in QUANTILES:
            off = np.abs(_rank_error(data, value, QUANTILES[name])) / RANK_TOLERANCE
        else:
            scale = std if name in ("mean", "std") else span
            # What is constant is compared by its own size.
            scale = np.where(scale > 0, scale, np.maximum(np.abs(expected), 1e-3))
            off = np.abs(value - expected) / scale / TOLERANCE
        at = int(np.argmax(off))
        if off[at] > 1 and (worst is None or off[at] > worst[0]):
            label = f" ({names[at]})" if at < len(names) else ""
            text = f"{name} at {at}{label} is {value[at]:.4g} instead of {expected[at]:.4g}"
            if name in QUANTILES:
                share = float(data.ranks(value)[at])
                text += f": {share:.1%} of the steps do not exceed it"
            worst = float(off[at]), text
    if worst is None:
        return None
    order = _permutation(statistics, truth)
    if order is not None:
        text = f"its numbers are in another order, {', '.join(map(str, order))}"
        return text if not names else f"{text} of {', '.join(names)}"
    return worst[1]


def _rank_error(data: RunningStatistics, values: Array, share: float) -> Array:
    """Return by which share of the steps quantiles are off; 0 for a value with that very rank."""
    upto = data.ranks(values)
    # Of equal values, the rank is a range: the previous float has the lower end of it.
    below = data.ranks(np.nextafter(values.astype(np.float32), np.float32(-np.inf)))
    return np.where(share < below, below - share, np.where(share > upto, share - upto, 0.0))


def _permutation(statistics: Mapping[str, Array], truth: Mapping[str, Array]) -> list[int] | None:
    """Return which number of the data each number of the statistics is, if that explains them."""
    shared = [name for name in statistics if name in truth and name != "count"]
    rows = [np.asarray(statistics[name], np.float64).ravel() for name in shared]
    wanted = [truth[name] for name in shared]
    if len(shared) < 2 or any(a.shape != b.shape for a, b in zip(rows, wanted, strict=True)):
        return None
    mine, theirs = np.stack(rows, 1), np.stack(wanted, 1)
    scale = np.maximum(theirs.std(0), 1e-9)
    gaps = np.abs((mine[None] - theirs[:, None]) / scale).max(2) / 0.05
    return find_order(len(gaps), gaps.item)


def _is_imagenet(statistics: Mapping[str, Array]) -> bool:
    """Return True for the statistics of ImageNet, by which LeRobot normalizes by default."""
    wanted = {"mean": IMAGENET_MEAN, "std": IMAGENET_STD}
    return wanted.keys() <= statistics.keys() and all(
        statistics[name].size == len(values)
        and np.allclose(statistics[name].ravel(), values, atol=1e-3)
        for name, values in wanted.items()
    )


def why_not_of_images(statistics: Mapping[str, Array], sample: SampledImages) -> str | None:
    """Return how statistics, one number per channel, differ from those of a sample of images."""
    for name in ("mean", "std"):
        expected = sample.statistics[name]
        value = np.asarray(statistics.get(name, ()), np.float64).ravel()
        if value.shape != expected.shape:
            continue
        at = int(np.argmax(np.abs(value - expected)))
        if abs(value[at] - expected[at]) > IMAGE_TOLERANCE:
            return (
                f"{name} of channel {at} is {value[at]:.4g}, and {expected[at]:.4g} in "
                f"{sample.frames} of {sample.total:,} frames"
            )
    return None


def _why_not_of_dataset(statistics: Mapping[str, Array], stored: Mapping[str, Array]) -> str | None:
    for name, value in statistics.items():
        expected = stored.get(name)
        if expected is None or expected.size != value.size:
            continue
        mine, theirs = np.asarray(value, np.float64).ravel(), expected.ravel()
        scale = float(np.abs(stored.get("std", theirs)).max()) or 1.0
        at = int(np.argmax(np.abs(mine - theirs)))
        if abs(mine[at] - theirs[at]) > TOLERANCE * scale:
            return f"{name} at {at} is {mine[at]:.4g} instead of {theirs[at]:.4g}"
    return None


def _stale(facts: DatasetFacts) -> Iterator[Mismatch]:
    if facts.dataset.stored is None:
        return
    for key in facts.computed:
        if not facts.stored(key):
            yield mismatch(
                STALE,
                f"the dataset stores no statistics of {key!r}",
                f"compute them again: {STATS} is written when episodes are recorded",
                key=key,
            )
            continue
        how = facts.difference(key)
        if how is not None:
            yield mismatch(
                STALE,
                f"the stored statistics of {key!r} are not those of its data: {how}",
                "compute them again: they are older than the data, or were merged wrongly",
                key=key,
            )


def _not_finite(facts: DatasetFacts) -> Iterator[Mismatch]:
    for key, data in facts.computed.items():
        if data.nonfinite:
            total = data.nonfinite + data.count
            yield mismatch(
                NOT_FINITE,
                f"{key!r} is NaN or infinite in {data.nonfinite:,} of {total:,} steps",
                key=key,
            )
    for key, sample in facts.images.items():
        if sample.nonfinite:
            yield mismatch(
                NOT_FINITE,
                f"{key!r} is NaN or infinite in {sample.nonfinite:,} of {sample.frames:,} sampled "
                "frames",
                key=key,
            )


def _suspicious(facts: DatasetFacts) -> Iterator[Mismatch]:
    for key, feature in facts.dataset.features.items():
        stored = facts.stored(key)
        if facts.dataset.stored is None and key in facts.computed:
            stored = facts.computed[key].result()
        elif not stored and key in facts.images:
            stored = facts.images[key].statistics
        if not stored or not (feature.is_image or key in facts.computed):
            continue
        # Those of other features are compared with the data.
        reason = why_impossible(stored) if feature.is_image else None
        if reason is not None:
            yield mismatch(
                STALE,
                f"the stored statistics of {key!r} cannot be those of any data: {reason}",
                "compute them again from the data",
                key=key,
            )
            continue
        std = stored.get("std")
        limit = TINY_IMAGE_STD if feature.is_image else TINY_STD
        if std is not None and std.size and float(np.abs(std).min()) < limit:
            at = int(np.abs(std).argmin())
            label = f" ({feature.names[at]})" if at < len(feature.names) else ""
            yield mismatch(
                CONSTANT,
                f"{key!r} hardly moves at {at}{label}: its standard deviation is "
                f"{float(np.abs(std).min()):.3g}",
                "a normalizer amplifies noise there: leave it out, or record data in which it "
                "moves",
                key=key,
            )
        largest = max((float(np.max(stored[s])) for s in ("mean", "max") if s in stored), default=0)
        # Only what is stored: the images of an env may well be in 0 … 255.
        if facts.stored(key) and feature.is_image and largest > 2:
            yield mismatch(
                PIXELS,
                f"the stored statistics of {key!r} are of pixels in 0 … 255 (up to {largest:.4g})",
                "divide them by 255: policies read images in 0 … 1",
                key=key,
            )
            continue
        how = facts.difference(key) if key in facts.images else None
        if how is not None:
            yield mismatch(
                STALE,
                f"the stored statistics of {key!r} are not those of its images: {how}",
                "compute them again: they are older than the data, or were merged wrongly",
                key=key,
            )

"""The codes of the rules about checkpoints and datasets."""

from __future__ import annotations

from dataclasses import dataclass

from tdx.inspection.lint.rule import Severity


@dataclass(frozen=True, slots=True)
class CheckpointRule:
    """A rule about checkpoints."""

    code: str
    name: str
    title: str
    severity: Severity
    why: str


CHECKPOINT_RULES: tuple[CheckpointRule, ...] = (
    CheckpointRule(
        "TDX601",
        "statistics-missing",
        "a normalizer has no statistics of a feature",
        "error",
        """
        A normalizer passes a feature on unchanged if it has no statistics of it, without an error:
        the policy reads raw values. It happens if the statistics were saved under other names, or
        if the processors were built without those of the dataset.

        Save the processors with the statistics of the training, under the names of the features.
        """,
    ),
    CheckpointRule(
        "TDX602",
        "statistic-missing",
        "a statistic of the normalization mode is missing",
        "error",
        """
        A mode reads two statistics: a mean and a standard deviation, a minimum and a maximum, or
        two quantiles. Older datasets have no quantiles.
        """,
    ),
    CheckpointRule(
        "TDX603",
        "statistics-shape",
        "statistics have another shape than their feature",
        "error",
        """
        Statistics are broadcast against the feature. Those of another robot or camera have another
        number of values, and either fail or are broadcast along the wrong dimension.
        """,
    ),
    CheckpointRule(
        "TDX604",
        "statistics-width",
        "a normalizer amplifies a feature that hardly moves",
        "warning",
        """
        A feature that was constant in the data has a standard deviation or a range of about zero.
        Any deviation from it, also noise, becomes a large number that the policy has never seen.
        """,
    ),
    CheckpointRule(
        "TDX605",
        "statistics-impossible",
        "statistics contradict one another",
        "error",
        """
        Quantiles increase from the minimum to the maximum, the mean lies between both, and a
        standard deviation is at most half of the range. Statistics that break this are not those
        of one dataset: parts were averaged or merged, or some are older than others.
        """,
    ),
    CheckpointRule(
        "TDX606",
        "image-range",
        "statistics of images are of pixels in 0 … 255",
        "error",
        """
        LeRobot scales images to 0 … 1 before they are normalized. Statistics of pixels in 0 … 255
        make all images nearly equal to one another.
        """,
    ),
    CheckpointRule(
        "TDX607",
        "normalized-twice",
        "a feature is normalized twice",
        "error",
        """
        Two steps normalize the same feature, such as an ImageNet normalization in front of a
        normalizer with a mode for images.
        """,
    ),
    CheckpointRule(
        "TDX608",
        "mode-differs",
        "a normalizer and config.json have different modes",
        "error",
        """
        The configuration of the policy declares how each kind of feature is normalized, and the
        saved processor does it in another way.
        """,
    ),
    CheckpointRule(
        "TDX609",
        "features-differ",
        "a normalizer and config.json have different features",
        "error",
        """
        A feature of the policy is not one of the normalizer, or has another shape there. Features
        that a normalizer does not know pass it unchanged.
        """,
    ),
    CheckpointRule(
        "TDX610",
        "rename-lost",
        "renamed observations do not reach the policy",
        "error",
        """
        A rename map gives an observation a name that nothing reads, or it runs behind a step that
        needs the new name.
        """,
    ),
    CheckpointRule(
        "TDX611",
        "not-inverted",
        "the postprocessor does not invert the normalization of actions",
        "error",
        """
        Actions are normalized for the training, and the output of the policy must be unnormalized
        with the same mode and statistics. Otherwise the robot moves by other amounts.
        """,
    ),
    CheckpointRule(
        "TDX612",
        "step-missing",
        "a step of this type of policy is missing",
        "error",
        """
        Each type of policy has default steps. A processor that was saved without one of them runs
        without an error.
        """,
    ),
    CheckpointRule(
        "TDX613",
        "action-steps",
        "more actions are executed than the policy returns",
        "error",
        """
        A policy returns a chunk of actions, of which `n_action_steps` are executed before it is
        asked again.
        """,
    ),
    CheckpointRule(
        "TDX614",
        "delta-of-deltas",
        "delta actions were computed from deltas",
        "warning",
        """
        The means of the actions are those of the state with the opposite sign, with the same
        standard deviations. Actions that are targets have about the means of the state, and
        deltas have means near zero: so the state was subtracted from actions that were deltas
        already. The robot gets its state added to a delta, twice too much or with a wrong sign.
        Compute the deltas once: switch off the transform, or use a dataset of absolute actions.

        Only features that stay on one side of zero can show it.
        """,
    ),
)
"""The rules about checkpoints, sorted by code."""
OTHER_DATA = CheckpointRule(
    "TDX621",
    "statistics-of-other-data",
    "a normalizer has statistics of another dataset",
    "error",
    """
    The statistics of a normalizer are not those of the data: they belong to another dataset, to a
    part of it, or to its features in another order. The policy reads values of another scale.
    """,
)
NOT_IN_DATA = CheckpointRule(
    "TDX622",
    "feature-not-in-data",
    "a feature of the policy is not in the dataset",
    "error",
    """
    The policy reads a feature that the dataset does not have under this name, or has with another
    number of values.
    """,
)
STALE = CheckpointRule(
    "TDX623",
    "statistics-stale",
    "stored statistics are not those of the data",
    "error",
    """
    The statistics that a dataset stores differ from its data: episodes were added or removed
    without computing them again, or quantiles of episodes were averaged, which are not the
    quantiles of all steps.
    """,
)
NOT_FINITE = CheckpointRule(
    "TDX624",
    "data-not-finite",
    "data has values that are not finite",
    "error",
    """
    A NaN or an infinity in the data makes the loss NaN, and the statistics too.
    """,
)
CONSTANT = CheckpointRule(
    "TDX625",
    "data-constant",
    "a feature of the data hardly moves",
    "warning",
    """
    A feature that is constant in the data has a standard deviation of about zero, by which a
    normalizer divides.
    """,
)
PIXELS = CheckpointRule(
    "TDX626",
    "data-image-range",
    "images, or their stored statistics, are of pixels in 0 … 255",
    "error",
    """
    LeRobot scales images to 0 … 1 before they are normalized, and stores statistics of that range.
    It scales numbers of 8 bits: with `--data` and `--samples`, a sample of the images is read, and
    larger numbers of another dtype are reported unless the processors scale them.
    """,
)
OTHER_FPS = CheckpointRule(
    "TDX627",
    "fps-differs",
    "the policy and the dataset have different numbers of steps per second",
    "error",
    """
    A policy that was trained with 30 steps per second and acts 50 times per second moves the robot
    too fast, and chunks of actions cover another time. No value of a single step differs.

    Deploy the policy at the frequency of its data, or resample the data.
    """,
)
OUTSIDE_SPEC = CheckpointRule(
    "TDX628",
    "data-outside-spec",
    "recorded values are outside their spec",
    "error",
    """
    A dump records the specs of its pipeline beside the data. A value that its spec does not allow
    breaks what reads the specs: an encoder that scales by the bounds, or a policy that clips.

    Correct the spec or the stage that writes the value, and record the dump again.
    """,
)
DATASET_RULES = (
    *(OTHER_DATA, NOT_IN_DATA, STALE, NOT_FINITE, CONSTANT, PIXELS, OTHER_FPS, OUTSIDE_SPEC),
)
"""The rules about data, sorted by code."""

"""Kinds of differences between a contract and a target, with their codes and explanations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

DifferenceKind = Literal[
    "missing stage",
    "order",
    "argument",
    "spec",
    "feature order",
    "scale",
    "dtype",
    "state missing",
    "state fresh",
    "state still learning",
    "value",
    "inner calls",
    "setting",
]


@dataclass(frozen=True, slots=True)
class DifferenceCode:
    """Code of one kind of difference.

    Args:
        code: Stable code.
        kind: The kind; ``None`` for a special case of others.
        name: Name, such as ``"missing-stage"``.
        title: What is wrong, in a few words.
        why: Consequence and solution, as prose.
    """

    code: str
    kind: DifferenceKind | None
    name: str
    title: str
    why: str


DIFFERENCE_CODES = (
    DifferenceCode(
        "TDX501",
        "missing stage",
        "missing-stage",
        "a stage is missing, or there is one too many",
        """
        A stage of the contract changes what the policy reads or does, and the target has no stage
        that does the same; or the target has a further one. Counters, monitors, step limits and
        stages that change only the reward do not count.

        Build the target with the same stages, or record the contract again.
        """,
    ),
    DifferenceCode(
        "TDX502",
        "order",
        "stage-order",
        "stages are in another order",
        """
        Both sides have the stage, at different positions. Stages rarely commute: clipping before a
        normalization limits other values than clipping after it.
        """,
    ),
    DifferenceCode(
        "TDX503",
        "argument",
        "stage-argument",
        "an argument of a stage differs",
        """
        The same class was created with another value. Arguments in which training and evaluation
        differ on purpose, such as `training`, do not count.
        """,
    ),
    DifferenceCode(
        "TDX504",
        "spec",
        "stage-spec",
        "shape, bounds or keys differ",
        """
        A key is missing, or has another shape or other bounds, after a stage or in the env inside.
        It is also reported if a stage of the target raises an error with the inputs of the
        contract, for example if its statistics have another width.
        """,
    ),
    DifferenceCode(
        "TDX505",
        "feature order",
        "feature-order",
        "features are in another order",
        """
        The values are those of the contract, at other positions: entries joined in another order,
        BGR instead of RGB, or another layout of an image. Networks accept them without an error.
        """,
    ),
    DifferenceCode(
        "TDX506",
        "scale",
        "value-scale",
        "values are scaled or shifted",
        """
        The values are those of the contract times a factor, plus an offset: pixels in 0 … 255
        instead of 0 … 1, degrees instead of radians, or another scale of an action.
        """,
    ),
    DifferenceCode(
        "TDX507",
        "dtype",
        "value-dtype",
        "the dtype differs",
        """
        The values have another dtype, such as uint8 instead of float32. Within one library float32
        and float64 differ, between libraries they do not.
        """,
    ),
    DifferenceCode(
        "TDX508",
        "state missing",
        "state-missing",
        "a state of the training is missing",
        """
        The stage of the contract has statistics or buffers that the target does not have, so it
        passes values on, or uses defaults.

        Load the state of the training: `tdx inspect state --export` writes it, and every library
        has its own way.
        """,
    ),
    DifferenceCode(
        "TDX509",
        "state fresh",
        "state-fresh",
        "statistics are fresh",
        """
        The statistics of the target have counted no value, or one, while those of the contract have
        been trained. The policy reads values of another scale, without an error.

        Load the statistics of the training: `VecNormalize.load`, `load_state_dict`, or copy
        `obs_rms`.
        """,
    ),
    DifferenceCode(
        "TDX510",
        "state still learning",
        "state-learning",
        "statistics still change",
        """
        The statistics of the target change with every step, and those of the contract do not; with
        `--eval`, they must not change at all. The values of the policy drift during the evaluation.

        Stop the updates: `training = False`, `update_running_mean = False` or `freeze()`.
        """,
    ),
    DifferenceCode(
        "TDX511",
        "value",
        "other-value",
        "values differ",
        """
        The values, or the numbers in the state, differ in a way that no order and no scale
        explains. The message has the size and the feature.
        """,
    ),
    DifferenceCode(
        "TDX512",
        None,
        "frame-stack",
        "frames are stacked in another way",
        """
        The number or the order of the stacked frames differs, or what fills the stack at the start
        of an episode: zeros, or copies of the first frame.
        """,
    ),
    DifferenceCode(
        "TDX513",
        None,
        "frame-shape",
        "images have another shape than in training",
        """
        The images have another height, width, number of channels or layout than those of the
        contract.
        """,
    ),
    DifferenceCode(
        "TDX514",
        "inner calls",
        "inner-calls",
        "a stage makes another number of inner calls",
        """
        A stage steps or resets what is inside of it more or less often than in the contract, such
        as a frame skip of 3 instead of 4. The values may agree, and the episode runs faster or
        slower than in training.
        """,
    ),
    DifferenceCode(
        "TDX515",
        "setting",
        "policy-setting",
        "a setting of the policy differs",
        """
        The policy sees another number of observations, executes another number of actions of each
        chunk before it is asked again, or acts at another frequency than in the contract. No value
        of a single step differs, and the robot moves too early, too late or too fast.

        Deploy the policy with the settings of the contract, or record it again if they were changed
        on purpose.
        """,
    ),
)
"""All codes, in order."""

CODES = {known.kind: known.code for known in DIFFERENCE_CODES if known.kind is not None}
"""Code of each kind."""
FRAME_STACK, FRAME_SHAPE = "TDX512", "TDX513"

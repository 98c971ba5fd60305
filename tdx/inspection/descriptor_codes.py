"""The codes of the rules about deployment descriptors."""

from __future__ import annotations

from tdx.inspection.checkpoint_codes import CheckpointRule

TERMS = CheckpointRule(
    "TDX641",
    "terms-differ",
    "two descriptors have different terms",
    "error",
    """
    The policy was trained with other observation or action terms than the deployment has. If the
    sizes happen to be equal, the policy runs on numbers that mean something else.
    """,
)
TERM_ORDER = CheckpointRule(
    "TDX642",
    "term-order",
    "terms are in another order",
    "error",
    """
    Observation terms are concatenated, so the policy knows them by their position only. Terms in
    another order have the same total size, and nothing fails.
    """,
)
JOINT_ORDER = CheckpointRule(
    "TDX643",
    "joint-order",
    "joints are in another order",
    "error",
    """
    Simulators order joints differently: along each limb, by depth in the tree, or as the actuators
    are listed. Without a mapping between the orders, each joint gets the action of another one.
    """,
)
JOINTS = CheckpointRule(
    "TDX644",
    "joints-differ",
    "two descriptors have different joints",
    "error",
    """
    The robot of the deployment has joints that the policy was not trained with, or lacks some.
    """,
)
POSITIONS = CheckpointRule(
    "TDX645",
    "default-positions",
    "default joint positions differ",
    "error",
    """
    Policies read joint positions relative to the default ones, and their actions are added to
    them. With other default positions, an action of zero is another pose.
    """,
)
ACTION_SCALE = CheckpointRule(
    "TDX646",
    "action-scale",
    "actions are scaled differently",
    "error",
    """
    The target of a joint is `offset + scale * action`, within the limits of a clip. With another
    scale, all movements are too large or too small.
    """,
)
HISTORY = CheckpointRule(
    "TDX647",
    "history-differs",
    "observation histories differ",
    "error",
    """
    A term with a history has several frames. Their number differs, or they are in another layout:
    all frames of a term before the next term, or all terms of a frame before the next frame.
    """,
)
TERM_SCALE = CheckpointRule(
    "TDX648",
    "term-scale",
    "observations are scaled or clipped differently",
    "error",
    """
    A term is multiplied by a scale, and clipped, before the policy reads it.
    """,
)
TERM_SHAPE = CheckpointRule(
    "TDX649",
    "term-shape",
    "a term has another shape",
    "error",
    """
    A term of the same name has another number of values, and moves all terms behind it.
    """,
)
GAINS = CheckpointRule(
    "TDX650",
    "gains-differ",
    "stiffness or damping differ",
    "error",
    """
    The gains of the actuators belong to the policy: with others, the same target is reached at
    another speed, or not at all. Gains in the order of the actuators, next to names in the order
    of the joints, are a frequent cause.
    """,
)
CONTROL_STEP = CheckpointRule(
    "TDX651",
    "control-step",
    "the time between two actions differs",
    "error",
    """
    A policy that acts more often than in its training sees smaller changes between two
    observations, and its last action is younger.
    """,
)
CONTRADICTION = CheckpointRule(
    "TDX652",
    "descriptor-contradiction",
    "a descriptor contradicts itself",
    "error",
    """
    A list has another number of values than there are joints, a joint is listed twice, or a number
    is not finite. A deployment that reads the list assigns values to wrong joints.
    """,
)
DESCRIPTOR_RULES = (
    *(TERMS, TERM_ORDER, JOINT_ORDER, JOINTS, POSITIONS, ACTION_SCALE, HISTORY, TERM_SCALE),
    *(TERM_SHAPE, GAINS, CONTROL_STEP, CONTRADICTION),
)
"""The rules about deployment descriptors, sorted by code."""

"""How a transform's output depends on time, from which the engine decides when it runs."""

from __future__ import annotations

from enum import Enum


class TimeBehaviour(Enum):
    """What a transform needs to know of other time steps.

    ``POINTWISE``: each step maps on its own, for any leading dims. ``SCAN``: it depends on
    earlier steps of the same episode. ``CONTROL``: it decides what happens next, or is not known
    to be one of the others.
    """

    POINTWISE = "pointwise"
    SCAN = "scan"
    CONTROL = "control"

"""DLR-RM/stable-baselines3#2258: FrameStackObservation makes an image a batch of images."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.wrappers import FrameStackObservation, GrayscaleObservation

from tests.field.published import suggestions
from tests.field.test_gymnasium_415 import Image


class ColorImage(Image):
    """Random RGB images."""

    observation_space: Any = spaces.Box(0, 255, (8, 8, 3), np.uint8)


def test_stacked_rgb_images() -> None:
    env = FrameStackObservation(ColorImage(), 4)
    assert suggestions(env) == [("TDX408", 0, "FrameStackObservation", "observation")]


def test_stacked_gray_images_are_silent() -> None:
    assert suggestions(FrameStackObservation(GrayscaleObservation(ColorImage()), 4)) == []

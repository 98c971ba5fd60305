"""DLR-RM/stable-baselines3#693: ``VecNormalize`` followed by ``VecFrameStack``.

Off-policy algorithms store the observation of ``VecNormalize.get_original_obs()``, which is not
stacked; the remedy of that report is to invert the two wrappers.
"""

from __future__ import annotations

from stable_baselines3.common.vec_env import VecFrameStack, VecNormalize

from tests.field.published import findings, suggestions, vec_pendulum
from tests.programs import exhaustive


@exhaustive
def test_normalizer_inside_of_the_frame_stack_is_named() -> None:
    env = VecFrameStack(VecNormalize(vec_pendulum()), 2)
    # Training code uses this order on purpose, so that it is no failure.
    assert ("TDX403", 5, "VecNormalize", "observation") in suggestions(env)


@exhaustive
def test_inverted_wrappers_are_silent() -> None:
    assert findings(VecNormalize(VecFrameStack(vec_pendulum(), 2))) == []

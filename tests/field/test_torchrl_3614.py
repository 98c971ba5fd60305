"""pytorch/rl#3614: ``LineariseRewards`` declares a reward ``[..., 1]`` and returns ``[...]``.

The class is that of the pull request, before the change.
"""

from __future__ import annotations

from typing import Any

from torchrl.envs import LineariseRewards

from tests.field.published import findings
from tests.field.test_torchrl_3237 import WEIGHTED, make


class SqueezedRewards(LineariseRewards):  # type: ignore[misc]
    """Sums the last dimension away."""

    def _apply_transform(self, reward: Any) -> Any:
        return reward.sum(-1)


def test_shape_that_differs_from_the_spec_is_named() -> None:
    assert findings(make(SqueezedRewards)) == [("TDX401", 0, "SqueezedRewards", WEIGHTED)]

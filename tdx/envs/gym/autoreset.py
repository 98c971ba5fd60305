"""Autoreset modes of vector envs, and resets of single rows, which Gymnasium has since 1.1."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from functools import partial
from typing import Any

from gymnasium import vector

from tdx.envs.gym.interface import AnyEnv, AnyWrapper, Info, ResetResult, StepResult

Build = Callable[[], AnyEnv]

RESETS_ROWS = hasattr(vector, "AutoresetMode")
"""True if Gymnasium's vector envs take ``autoreset_mode``, and ``reset_mask`` in the options."""

if RESETS_ROWS:
    from gymnasium.vector import AutoresetMode as AutoresetMode
else:

    class AutoresetMode(Enum):  # type: ignore[no-redef]
        """When a row that ended is reset. Vector envs of Gymnasium 1.0 know next-step only."""

        NEXT_STEP = "NextStep"
        SAME_STEP = "SameStep"
        DISABLED = "Disabled"


def create_without_autoreset(kind: Callable[..., Any], builds: list[Build], **kwargs: Any) -> Any:
    """Create a vector env of Gymnasium that only ``reset`` resets, in whole or in rows."""
    if RESETS_ROWS:
        return kind(builds, autoreset_mode=AutoresetMode.DISABLED, **kwargs)

    def build_row(build: Build, row: int) -> RowReset:
        return RowReset(build(), row)

    env = kind([partial(build_row, build, row) for row, build in enumerate(builds)], **kwargs)
    env.metadata = {**env.metadata, "autoreset_mode": AutoresetMode.DISABLED}
    return env


class RowReset(AnyWrapper):
    """Ignores resets of other rows, for vector envs that pass each reset to every row.

    Such a vector env resets an ended row in its next step, unless it was reset before. A user that
    resets every ended row before the next step therefore sees no reset by the env itself. ``row``
    is the index in ``options["reset_mask"]``.
    """

    uses_own_generator = True

    def __init__(self, env: AnyEnv, row: int) -> None:
        super().__init__(env)
        self._row = row
        self._observation: Any = None

    def step(self, action: object) -> StepResult:
        result = super().step(action)
        self._observation = result[0]
        return result

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> ResetResult:
        """Reset the row, unless a mask excludes it; then return its last observation."""
        if options is not None and "reset_mask" in options:
            if not options["reset_mask"][self._row]:
                return self._observation, {}
            options = {key: value for key, value in options.items() if key != "reset_mask"}
        self._observation, info = super().reset(seed=seed, options=options)
        return self._observation, info

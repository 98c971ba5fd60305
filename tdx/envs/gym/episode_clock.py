"""Steps an env below the two wrappers that ``gymnasium.make`` adds, with the same results.

``TimeLimit`` and ``OrderEnforcing`` take up to a tenth of a step of a small env. A loop that knows
when the time limit ends an episode need not call them; at its end it tells ``TimeLimit`` how many
steps it has made.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gymnasium.wrappers import OrderEnforcing, TimeLimit

Step = Callable[[Any], Any]

NEVER = 2**62
"""A step that no rollout reaches."""

# Whoever replaces these steps wants them to be called.
_OWN_STEPS = {OrderEnforcing: OrderEnforcing.step, TimeLimit: TimeLimit.step}


class EpisodeClock:
    """Knows at which step of a loop the time limit of an env truncates its episode.

    Args:
        env: Single Gymnasium env.
        measured: Returns a step that is measured. ``None``: nothing is measured.

    Example:
        >>> import gymnasium
        >>> env = gymnasium.make("CartPole-v1", max_episode_steps=3, disable_env_checker=True)
        >>> _ = env.reset(seed=0)
        >>> clock = EpisodeClock(env)
        >>> clock.last
        2
        >>> _ = [clock.step(0) for _ in range(2)]
        >>> clock.settle(2)
        >>> EpisodeClock(env).last
        0
    """

    def __init__(self, env: Any, measured: Callable[[Step], Step] | None = None) -> None:
        limit, inner = None, env
        if type(env) is TimeLimit and _is_original(env) and env._elapsed_steps is not None:
            limit, inner = env, env.env
        self.has_episode = (
            type(inner) is OrderEnforcing and _is_original(inner) and inner._has_reset is True
        )
        """True if the step cannot raise ``ResetNeeded``."""
        step = inner.env.step if self.has_episode else env.step
        self.step: Step = step if measured is None else measured(step)
        """Makes a step, which the time limit does not truncate."""
        self.last = NEVER
        """The step after which the time limit truncates the episode."""
        self._limit: Any = limit if self.has_episode else None
        self._start, self._is_running = 0, False
        self.restart(0)

    def restart(self, index: int) -> None:
        """Take note that step ``index`` is the next one, after a reset of the env."""
        if self._limit is not None:
            self._start = index - self._limit._elapsed_steps
            self.last = self._start + self._limit._max_episode_steps - 1
            self._is_running = True

    def settle(self, count: int) -> None:
        """Tell the time limit that ``count`` steps of the loop have been made."""
        if self._is_running:
            self._limit._elapsed_steps = count - self._start
            self._is_running = False


def _is_original(wrapper: Any) -> bool:
    """Return True if the step of a wrapper is the one that Gymnasium gave its class."""
    kind = type(wrapper)
    return "step" not in vars(wrapper) and kind.step is _OWN_STEPS[kind]

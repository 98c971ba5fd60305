"""Private attributes of Gymnasium's wrappers, and what each buys; no other module uses them.

``tests/foundation/test_private_parts.py`` fails with the name of the part if a release of Gymnasium
changes one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def time_limit_of(wrapper: Any) -> int:
    """Return the number of steps after which a ``TimeLimit`` truncates an episode.

    Its ``spec`` has the number too, but only for an env that ``gymnasium.make`` created.
    """
    return int(wrapper._max_episode_steps)


def statistics_key_of(wrapper: Any) -> str:
    """Return the name in ``info`` under which a wrapper reports an episode.

    The monitors of Stable-Baselines3 have no such attribute, and always report ``episode``.
    """
    return getattr(wrapper, "_stats_key", "episode")


SPACE_GENERATOR = "_np_random"
"""Attribute of a space: the generator of its samples, or ``None`` before the first one.

Reading the public ``np_random`` creates a generator, which changes what is to be saved.
"""


def recorded_arguments(attributes: Mapping[str, object]) -> Mapping[str, object] | None:
    """Return the constructor arguments among a wrapper's attributes; ``None`` if it records none.

    The alternative is an attribute of the same name, which not every argument has.
    """
    recorded = attributes.get("_saved_kwargs")
    return recorded if isinstance(recorded, Mapping) else None

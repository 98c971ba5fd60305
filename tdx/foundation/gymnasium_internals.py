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


def recorded_arguments(attributes: Mapping[str, object]) -> Mapping[str, object] | None:
    """Return the constructor arguments among a wrapper's attributes; ``None`` if it records none.

    The alternative is an attribute of the same name, which not every argument has.
    """
    recorded = attributes.get("_saved_kwargs")
    return recorded if isinstance(recorded, Mapping) else None

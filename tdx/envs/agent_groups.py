"""Groups of agents, whose entries an env keeps together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from enum import Enum

from tdx.foundation.errors import ArgumentError


class MarlGroupMapType(Enum):
    """Ways to group the agents of an env.

    Example:
        >>> MarlGroupMapType.ONE_GROUP_PER_AGENT.get_group_map(["left", "right"])
        {'left': ['left'], 'right': ['right']}
    """

    ALL_IN_ONE_GROUP = 1
    """A single group ``agents``, whose entries are stacked."""

    ONE_GROUP_PER_AGENT = 2
    """A group for each agent, under its name."""

    def get_group_map(self, agent_names: Sequence[str]) -> dict[str, list[str]]:
        """Return the names of the agents of each group.

        Args:
            agent_names: Names of all agents.
        """
        if self is MarlGroupMapType.ALL_IN_ONE_GROUP:
            return {"agents": list(agent_names)}
        return {name: [name] for name in agent_names}


def check_marl_grouping(group_map: Mapping[str, Sequence[str]], agent_names: Sequence[str]) -> None:
    """Check that each agent of an env is in exactly one group.

    Args:
        group_map: Names of the agents of each group.
        agent_names: Names of all agents.

    Raises:
        ArgumentError: A group is empty, or an agent is unknown, in several groups or in none.
    """
    empty = [group for group, members in group_map.items() if not members]
    if empty:
        raise ArgumentError(f"the group {empty[0]!r} is empty", hint="remove it from group_map")
    counts = Counter(name for members in group_map.values() for name in members)
    for name in {**dict.fromkeys(agent_names), **counts}:
        known = f"agents: {', '.join(agent_names)}"
        if name not in agent_names:
            raise ArgumentError(f"the env has no agent {name!r}", hint=known)
        if counts[name] != 1:
            where = "in no group" if not counts[name] else "in several groups, or repeated"
            raise ArgumentError(
                f"the agent {name!r} is {where}", hint="put each agent into one group"
            )

"""``PettingZooStack``: a parallel env of PettingZoo with its wrappers, also those of SuperSuit.

Rewards and flags are vectors, ``[A]`` for A agents in the order of ``possible_agents``.
Observations and actions are ``[A, ...]`` if the agents have equal spaces at each level; otherwise,
each agent has an entry, such as ``observation.archer_0``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from gymnasium import Space, spaces

from tdx.foundation.errors import ArgumentError, get_first_line
from tdx.foundation.keys import NestedKey
from tdx.stacks.gymnasium.building import build_action, build_value
from tdx.stacks.gymnasium.level_stack import LevelDriver, LevelStack
from tdx.stacks.gymnasium.levels import MAX_LEVELS, Level
from tdx.stacks.gymnasium.observed import WrapperLevels
from tdx.stacks.observe import Event, Method, RowEntries, Slot
from tdx.stacks.observe.copies import LevelEntries
from tdx.stacks.observe.events import FLAGS, OBSERVATION, REWARD
from tdx.stacks.refusals import Missing
from tdx.stacks.sources import attributes_of
from tdx.stacks.stack import StageInfo

_PARTS = "observations, rewards, terminations, truncations, infos"
_MOST_NAMED = 6
_TO_AEC = "parallel_to_aec_wrapper"
"""Class of PettingZoo that makes an AEC env of a parallel one."""
_THIN = ("OrderEnforcingWrapper", _TO_AEC)
"""AEC wrappers that change no values."""
_MODIFIER = "modifier_class"
"""Attribute and argument of SuperSuit's wrapper: the class that changes the values of one agent."""


def _modified_name(owner: object) -> str:
    modifier = attributes_of(owner).get(_MODIFIER)
    return str(getattr(modifier, "__name__", type(owner).__name__))


def _fold(parts: Sequence[Space[object]]) -> Space[object] | None:
    """Return the space of all agents together, ``[A, ...]``; ``None`` if there is none."""
    first, count = parts[0], len(parts)
    if any(part != first for part in parts):
        return None
    if isinstance(first, spaces.Box):
        low, high = np.stack([first.low] * count), np.stack([first.high] * count)
        return spaces.Box(low, high, dtype=first.dtype.type)
    if isinstance(first, spaces.Discrete):
        return spaces.MultiDiscrete([first.n] * count, start=[first.start] * count)
    return None


@dataclass(frozen=True, slots=True)
class ParallelLevel(Level):
    """A level of a parallel env."""

    agents: tuple[str, ...] = ()  # Names of all agents, in order.
    # Whether observations and actions, respectively, are [A, ...].
    is_folded: tuple[bool, bool] = (False, False)

    @property
    def name(self) -> str:
        """Class name; of a wrapper of SuperSuit that of what it does to each agent.

        A level that steps the agents of an AEC env one by one has the names of its wrappers.
        """
        if self.index >= 0 and "aec_env" in attributes_of(self.owner):
            wrappers = map(_modified_name, _aec_wrappers(self.owner))
            return ", ".join(name for name in wrappers if name not in _THIN)
        return _modified_name(self.owner)

    @property
    def env_name(self) -> str:
        """Name that the env declares, or the class name."""
        metadata = getattr(self.owner, "metadata", None) or {}
        return str(metadata.get("name", self.name))

    def agent_spaces(self, method: str) -> list[Space[object]]:
        return [getattr(self.owner, method)(agent) for agent in self.agents]

    def _space(self, method: str, *, is_folded: bool) -> Space[object]:
        parts = self.agent_spaces(method)
        folded = _fold(parts) if is_folded else None
        return spaces.Dict(dict(zip(self.agents, parts, strict=True))) if folded is None else folded

    @property
    def observation_space(self) -> Space[object]:
        return self._space("observation_space", is_folded=self.is_folded[0])

    @property
    def action_space(self) -> Space[object]:
        return self._space("action_space", is_folded=self.is_folded[1])

    def info(self) -> StageInfo:
        # slots=True creates the class anew, which breaks super() without arguments.
        info = Level.info(self)
        arguments = {name: value for name, value in info.arguments.items() if name != _MODIFIER}
        return replace(info, name=self.name, arguments=arguments)

    def join(self, values: Mapping[str, Any], *, of_actions: bool) -> Any:
        """Return the values of the agents as one value of the space; absent agents get zeros."""
        space = self.action_space if of_actions else self.observation_space
        joined = build_value(space, {}, (OBSERVATION,))
        for row, agent in enumerate(self.agents):
            if agent in values:
                joined[row if self.is_folded[of_actions] else agent] = values[agent]
        return joined

    def split(self, value: Any, agents: Sequence[str], *, of_actions: bool) -> dict[str, Any]:
        """Return the values of some agents from one value of the space."""
        if not self.is_folded[of_actions]:
            return {agent: value[agent] for agent in agents}
        return {agent: value[self.agents.index(agent)] for agent in agents}


def list_levels(env: Any) -> tuple[ParallelLevel, ...]:
    """List the levels of a parallel env, the env inside first."""
    owners = [env]
    while len(owners) <= MAX_LEVELS and (inner := _inner_env(owners[-1])) is not None:
        owners.append(inner)
    try:
        agents = tuple(env.possible_agents)
        levels = [
            ParallelLevel(index, (owner,), None, agents=agents)
            for index, owner in enumerate(reversed(owners), start=-1)
        ]
        is_folded = [
            all(_fold(level.agent_spaces(method)) is not None for level in levels)
            for method in ("observation_space", "action_space")
        ]
    except Exception as error:
        raise ArgumentError(
            f"the agents of {type(env).__name__} cannot be read: {get_first_line(error)}",
            hint="define possible_agents, observation_space(agent) and action_space(agent)",
        ) from error
    return tuple(replace(level, is_folded=(is_folded[0], is_folded[1])) for level in levels)


def _inner_env(owner: object) -> object:
    """Return the parallel env that a wrapper steps; ``None`` for the env inside.

    Some wrappers of SuperSuit convert a parallel env to an AEC env, wrap that, and convert it back.
    """
    inner = attributes_of(owner).get("env")
    if "aec_env" in attributes_of(owner):
        converted = _aec_wrappers(owner)
        is_converted = converted and type(converted[-1]).__name__ == _TO_AEC
        inner = attributes_of(converted[-1]).get("env") if is_converted else None
    return inner if hasattr(inner, "possible_agents") else None


def _aec_wrappers(owner: object) -> list[object]:
    """Return the wrappers of an AEC env that a parallel env steps, outermost first.

    The last one is the conversion of a parallel env, or the AEC env inside.
    """
    wrappers = [attributes_of(owner)["aec_env"]]
    while len(wrappers) <= MAX_LEVELS and type(wrappers[-1]).__name__ != _TO_AEC:
        inner = attributes_of(wrappers[-1]).get("env")
        if not hasattr(inner, "agent_iter"):
            break
        wrappers.append(inner)
    return wrappers


class ParallelLevels(WrapperLevels):
    """Levels of a parallel env: values of all agents, in dicts by agent."""

    def _level(self, index: int) -> ParallelLevel:
        level = self._levels[index]
        assert isinstance(level, ParallelLevel)
        return level

    def _join_result(self, index: int, result: Any) -> object:
        """Return a result as one of a single env.

        An agent that has left the episode has reward 0 and is terminated.
        """
        level = self._level(index)
        observation = level.join(result[0], of_actions=False)
        if len(result) == 2:
            return observation, result[1]
        _, rewards, terminated, truncated, infos = result
        agents = level.agents
        return (
            observation,
            np.array([rewards.get(agent, 0) for agent in agents], np.float64),
            np.array([terminated.get(agent, agent not in truncated) for agent in agents], bool),
            np.array([truncated.get(agent, False) for agent in agents], bool),
            infos,
        )

    def given_entries(self, index: int, given: Any) -> LevelEntries:
        return super().given_entries(index, self._level(index).join(given, of_actions=True))

    def returned_entries(self, index: int, method: Method, returned: object) -> LevelEntries:
        return super().returned_entries(index, method, self._join_result(index, returned))

    def base_entries(self, slot: Slot, result: object) -> RowEntries:
        return super().base_entries(slot, self._join_result(-1, result))

    def base_result(self, slot: Slot, entries: RowEntries, live: Any) -> Any:
        """See :class:`~tdx.stacks.observe.Levels`; the agents are those of the live result."""
        level = self._level(-1)
        agents = (
            level.agents if live is None else [name for name in level.agents if name in live[0]]
        )
        single = {key: value[0] for key, value in entries.items()}
        value = build_value(self._spaces(-1)[0], single, (OBSERVATION,))
        observation = level.split(value, agents, of_actions=False)
        infos = {agent: {} for agent in agents} if live is None else live[-1]
        if slot.method == "reset":
            return observation, infos
        rows = [level.agents.index(agent) for agent in agents]
        numbers = [single[name].tolist() for name in (REWARD, *FLAGS)]
        by_agent = [
            {agent: values[row] for agent, row in zip(agents, rows, strict=True)}
            for values in numbers
        ]
        return observation, *by_agent, infos

    def overwritten_keys(self, event: Event, entries: LevelEntries) -> Sequence[NestedKey]:
        """See :class:`~tdx.stacks.observe.Levels`; folded observations are copies."""
        if self._level(event.level).is_folded[0]:
            return ()
        return super().overwritten_keys(event, entries)

    def complete_reset(
        self, index: int, entries: LevelEntries, current: LevelEntries
    ) -> LevelEntries:
        """See :class:`~tdx.stacks.observe.Levels`; no agent has ended."""
        none_ended = torch.zeros(len(self._level(index).agents), dtype=torch.bool)
        entries.pop(REWARD, None)
        return entries | {name: current.get(name, none_ended) for name in FLAGS}


class PettingZooStack(LevelStack):
    """A parallel env of PettingZoo; each wrapper is a stage."""

    kind = "pettingzoo"
    done_keys = ("done", *FLAGS)
    ends_with_last_agent = True
    level_type = ParallelLevels
    no_pipeline = Missing(
        "a pipeline cannot name its env, whose agents act in one step",
        "write an EnvBase with the agents in a group, and its wrappers as transforms of the group",
    )

    def __init__(self, target: Any) -> None:
        levels = list_levels(target)
        super().__init__(target, levels)
        self.outer = levels[-1]
        self.value_shape = (len(self.outer.agents),)

    @property
    def notes(self) -> Sequence[str]:
        agents = list(self.outer.agents)
        if len(agents) > _MOST_NAMED:
            agents = [*agents[: _MOST_NAMED - 1], "…", agents[-1]]
        rows = f"the rows [{self.value_shape[0]}] are the agents {', '.join(agents)}"
        return (rows, *self.hidden)

    @property
    def hidden(self) -> Sequence[str]:
        owner = self.levels[0].owner
        if "aec_env" in attributes_of(owner):
            names = [_modified_name(wrapper) for wrapper in _aec_wrappers(owner)[:-1]]
            return (
                f"{type(owner).__name__} steps the agents of an AEC env one by one, whose wrappers "
                f"are not shown: {', '.join(names)}",
            )
        return ()

    @cached_property
    def sampled_space(self) -> Space[object]:
        """Space of the random actions of all agents, created once: it keeps the seed."""
        return self.outer.action_space

    def encode_action(self, entries: RowEntries) -> object:
        """See :class:`~tdx.stacks.Stack`; those of the agents that act."""
        value = build_action(self.sampled_space, entries, None)
        return self.outer.split(value, self.acting, of_actions=True)

    @property
    def acting(self) -> Sequence[str]:
        """The agents that have not left the episode."""
        left = set(self.target.agents)
        return [agent for agent in self.outer.agents if agent in left]

    def driver(self, policy: object = None) -> PettingZooDriver:
        """See :class:`~tdx.stacks.Stack`; the policy takes and returns a dict by agent."""
        return PettingZooDriver(self, policy)


class PettingZooDriver(LevelDriver):
    """Resets and steps a parallel env until all agents have left the episode."""

    policy_hint = "pass a function that takes observations and returns actions, both by agent"

    def __init__(self, stack: PettingZooStack, policy: object) -> None:
        super().__init__(stack, policy)
        self._parallel = stack

    def _reset(self, seed: int | None) -> object:
        result = self._stack.target.reset(seed=seed)
        return self._check_result(result, "reset", "observations, infos")[0]

    def _sample(self) -> object:
        stack = self._parallel
        return stack.outer.split(stack.sample_action(), stack.acting, of_actions=True)

    def _read(self, result: object) -> tuple[object, bool]:
        observations = self._check_result(result, "step", _PARTS)[0]
        return observations, not self._stack.target.agents

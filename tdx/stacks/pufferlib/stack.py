"""``PufferStack``: a vector env of PufferLib, and the wrappers in its sub-envs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from torch import Tensor

from tdx.foundation.errors import ArgumentError
from tdx.stacks.gymnasium.levels import Level, list_owners
from tdx.stacks.gymnasium.observed import WrapperLevels
from tdx.stacks.observe import Method, Slot
from tdx.stacks.observe.copies import Below, LevelEntries, copy_result
from tdx.stacks.observe.events import FLAGS
from tdx.stacks.sb3.vector_stack import VectorDriver, VectorStack
from tdx.stacks.sources import attributes_of

_PARTS = "observations, rewards, terminals, truncations, infos"


def list_levels(env: Any) -> tuple[Level, ...]:
    """List the levels of a vector env, the env inside first."""
    owners = list_owners(attributes_of(env).get("envs", ()), env, ())
    return tuple(
        Level(index, parts, env.num_agents, in_rows)
        for index, (parts, in_rows) in enumerate(owners, start=-1)
    )


class PufferLevels(WrapperLevels):
    """Levels of a vector env of PufferLib, which lists the infos of some of its sub-envs."""

    def _slots(self, level: Level, row: int, owner: object) -> Iterator[Slot]:
        for slot in super()._slots(level, row, owner):
            yield (
                slot
                if level.in_rows
                else Slot(level.index, row, slot.form, slot.method, owner, _copy)
            )

    def given_entries(self, index: int, given: Any) -> LevelEntries:
        """See :class:`~tdx.stacks.observe.Levels`; a sub-env gets a slice with one action."""
        shape = self._spaces(index)[1].shape or ()
        is_slice = self._levels[index].in_rows and np.shape(given) == (1, *shape)
        return super().given_entries(index, given[0] if is_slice else given)

    def returned_entries(self, index: int, method: Method, returned: Any) -> LevelEntries:
        """See :class:`~tdx.stacks.observe.Levels`; a list of infos does not say whose they are."""
        if self.forms()[index].is_batch:
            returned = (*returned[:-1], {})
        return super().returned_entries(index, method, returned)

    def base_result(self, slot: Slot, entries: Any, live: Any) -> Any:
        result = super().base_result(slot, entries, None if slot.form.is_batch else live)
        return (*result[:-1], []) if slot.form.is_batch else result


def _copy(result: Any, below: Below) -> tuple[object, ...] | None:
    return copy_result((*result[:-1], {}), below)


class PufferStack(VectorStack):
    """A vector env of PufferLib; each wrapper in its sub-envs and the vector env are stages."""

    kind = "pufferlib"
    done_keys = ("done", *FLAGS)
    level_type = PufferLevels
    local_class = "pufferlib.vector.Serial"
    observes_vector = False  # A Serial resets a sub-env in the step after the end of its episode.

    def __init__(self, target: Any) -> None:
        sub_envs = attributes_of(target).get("envs", ())
        if target.num_envs != target.num_agents:
            raise ArgumentError(
                "a vector env whose batches do not have all envs is not supported",
                hint="leave out batch_size",
            )
        if sub_envs and len(sub_envs) != target.num_agents:
            raise ArgumentError(
                "the sub-envs of this vector env have several agents each",
                hint="pass the PettingZoo parallel env inside one of them",
            )
        super().__init__(target, list_levels(target))

    @property
    def has_sub_envs(self) -> bool:
        return "envs" in attributes_of(self.target)

    def level_state(self, level: Level) -> dict[str, Tensor]:
        """Return copies of the numbers that a level keeps; the vector env keeps only buffers."""
        return super().level_state(level) if level.in_rows else {}

    def driver(self, policy: object = None) -> PufferDriver:
        """See :class:`~tdx.stacks.Stack`; the policy takes observations."""
        return PufferDriver(self, policy)


class PufferDriver(VectorDriver):
    """Resets and steps a vector env of PufferLib, which resets what has ended."""

    def _reset(self, seed: int | None) -> object:
        env = self._stack.target
        result = env.reset() if seed is None else env.reset(seed=seed)
        return self._check_result(result, "reset", "observations, infos")[0]

    def _read(self, result: object) -> tuple[object, bool]:
        return self._check_result(result, "step", _PARTS)[0], False

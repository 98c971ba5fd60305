"""``TianshouStack``: a vector env of Tianshou with its wrappers, and those in its sub-envs.

Tianshou is imported only where its objects exist, and so is this module.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from gymnasium import Space
from gymnasium.spaces import Box
from torch import Tensor

from tdx.foundation.errors import ArgumentError
from tdx.foundation.patches import Patches
from tdx.stacks.gymnasium.levels import Level, list_owners
from tdx.stacks.gymnasium.observed import WrapperLevels
from tdx.stacks.gymnasium.snapshots import result_entries
from tdx.stacks.observe import Method, Slot
from tdx.stacks.observe.copies import Below, LevelEntries, copy_result
from tdx.stacks.observe.events import FLAGS
from tdx.stacks.observe.levels import Original, RowEntries, Wrap
from tdx.stacks.sb3.adapter import VecEnvAdapter, VecStep
from tdx.stacks.sb3.levels import core_of, list_vec_wrappers
from tdx.stacks.sb3.observed import merge_rows
from tdx.stacks.sb3.vector_stack import VectorDriver, VectorStack
from tdx.stacks.sources import attributes_of

_PARTS = "observations, rewards, terminated, truncated, infos"


@dataclass(frozen=True, slots=True)
class TianshouLevel(Level):
    """A level of a stack of Tianshou."""

    # Of a wrapper of a vector env; of a DummyVectorEnv the last one in the sub-envs, if they are
    # shown.
    inside: TianshouLevel | None = None

    @property
    def env_name(self) -> str:
        declared = getattr(self.owner, "spec", None)
        spec = declared if self.in_rows or not declared else declared[0]
        return self.name if spec is None else str(spec.id)

    @property
    def observation_space(self) -> Space[object]:
        """Space of the observations of one env.

        A vector env and its wrappers have no spaces of their own: ``observation_space`` is that of
        the ``unwrapped`` sub-envs, also where a wrapper inside or outside changes it.
        """
        if self.inside is None:
            declared: Any = self.owner.observation_space
            own: Space[object] = declared if self.in_rows else declared[0]
            return own
        space = self.inside.observation_space
        statistics = attributes_of(self.owner).get("obs_rms")
        if statistics is None or not isinstance(space, Box):
            return space
        limit = statistics.clip_max or np.inf
        return Box(-limit, limit, space.shape, space.dtype.type)

    @property
    def action_space(self) -> Space[object]:
        if self.inside is not None:
            return self.inside.action_space
        declared: Any = self.owner.action_space
        own: Space[object] = declared if self.in_rows else declared[0]
        return own


def list_levels(env: object) -> tuple[TianshouLevel, ...]:
    """List the levels of a stack, the env inside first.

    The wrappers in the sub-envs of a ``DummyVectorEnv`` are levels if all sub-envs have the same
    wrappers, and so is the ``DummyVectorEnv``. Other vector envs are the env inside.
    """
    core = core_of(env)
    workers = [attributes_of(worker) for worker in core.workers]
    # Those of other processes have no `env`.
    sub_envs = [worker["env"] for worker in workers if "env" in worker]
    owners = list_owners(sub_envs, core, list_vec_wrappers(env))
    levels: list[TianshouLevel] = []
    for index, (parts, in_rows) in enumerate(owners, start=-1):
        inside = None if in_rows or not levels else levels[-1]
        levels.append(TianshouLevel(index, parts, core.env_num, in_rows, inside))
    return tuple(levels)


class SteppedVectorEnv:
    """A vector env of Tianshou with the methods of a VecEnv; it resets its rows in a step."""

    def __init__(self, env: Any) -> None:
        self.num_envs = len(env)
        self._env = env
        self._seed: int | None = None

    def seed(self, seed: int) -> None:
        """Seed the next reset of each sub-env."""
        self._seed = seed

    def reset(self) -> object:
        seed, self._seed = self._seed, None
        if seed is None:
            return self._env.reset()[0]
        # Its own `seed` resets the sub-envs, and the next reset draws other numbers.
        rows = [self._env.reset([row], seed=seed + row)[0] for row in range(self.num_envs)]
        return np.concatenate(rows)

    def step(self, actions: object) -> VecStep:
        """Step all rows, and reset those that are done, as a collector does."""
        observations, rewards, terminated, truncated, infos = self._env.step(actions)
        dones = np.logical_or(terminated, truncated)
        infos = [dict(info) for info in infos]
        ended = np.flatnonzero(dones).tolist()
        for row in ended:
            infos[row]["TimeLimit.truncated"] = bool(truncated[row] and not terminated[row])
            infos[row]["terminal_observation"] = np.array(observations[row])
        if ended:
            observations = np.array(observations)
            observations[ended] = self._env.reset(ended)[0]
        return observations, rewards, dones, infos

    def close(self) -> None:
        self._env.close()


@dataclass(slots=True)
class Progress:
    """What happened to a vector env so far."""

    # Observations that each level returned last.
    latest: dict[int, Any] = field(default_factory=dict)
    # While seed runs, which resets the sub-envs; it is no call of a level.
    is_seeding: bool = False


class TianshouLevels(WrapperLevels):
    """Levels of a vector env of Tianshou.

    A reset of some of the sub-envs counts as one of all: the others keep their last observations.
    Steps of some of the sub-envs are not observed.
    """

    progress: Progress
    """What the stack keeps between observations."""

    def _slots(self, level: Level, row: int, owner: object) -> Iterator[Slot]:
        if level.in_rows:
            yield from super()._slots(level, row, owner)
            return
        form = self.forms()[level.index]
        yield Slot(level.index, row, form, "reset", owner, _copy)
        yield Slot(level.index, row, form, "step", owner, _copy)

    @contextmanager
    def attached(self, wrap: Wrap, rows: int | None = None) -> Iterator[None]:
        with super().attached(partial(self._hook, wrap), rows):
            yield

    def _hook(self, wrap: Wrap, slot: Slot, original: Original) -> Original | None:
        if not slot.form.is_batch:
            observed = wrap(slot, original)
            if observed is None:
                return None
            progress = self.progress
            return lambda *args, **kwargs: (original if progress.is_seeding else observed)(
                *args, **kwargs
            )
        hook = self._hook_reset if slot.method == "reset" else self._hook_step
        return hook(wrap, slot, original)

    def _hook_step(self, wrap: Wrap, slot: Slot, original: Original) -> Original | None:
        def whole(action: object) -> Any:
            result = original(action)
            self.progress.latest[slot.level] = result[0]
            return result

        observed = wrap(slot, whole)
        if observed is None:
            return None

        def step(action: Any, id: Any = None) -> Any:
            return observed(action) if self._are_all(id) else original(action, id)

        return step

    def _hook_reset(self, wrap: Wrap, slot: Slot, original: Original) -> Original | None:
        def whole(env_id: Any = None, **kwargs: Any) -> Any:
            observations, infos = original(env_id, **kwargs)
            if env_id is not None:
                known, rows = np.array(self.progress.latest[slot.level]), infos
                infos = np.array([{} for _ in range(self.num_rows)])
                known[env_id], infos[env_id] = observations, rows
                observations = known
            self.progress.latest[slot.level] = observations
            return observations, infos

        observed = wrap(slot, whole)
        if observed is None:
            return None

        def reset(env_id: Any = None, **kwargs: Any) -> Any:
            if self._are_all(env_id):
                return observed(**kwargs)
            if slot.level not in self.progress.latest:
                return original(env_id, **kwargs)
            rows = np.atleast_1d(env_id).tolist()
            observations, infos = observed(env_id=rows, **kwargs)
            # A replay answers without infos.
            return observations[rows], infos[rows] if isinstance(infos, np.ndarray) else infos

        return reset

    def _are_all(self, ids: Any) -> bool:
        return ids is None or np.array_equal(ids, range(self.num_rows))

    def returned_entries(self, index: int, method: Method, returned: Any) -> LevelEntries:
        """See :class:`~tdx.stacks.observe.Levels`; infos are one dict for each sub-env."""
        if not self.forms()[index].is_batch:
            return super().returned_entries(index, method, returned)
        *values, infos = returned
        rows = [result_entries((None, info)) for info in infos]
        return super().returned_entries(index, method, (*values, {})) | self.merge_infos(rows)

    def merge_infos(self, rows: Sequence[LevelEntries]) -> LevelEntries:
        return merge_rows(rows)

    def base_result(self, slot: Slot, entries: RowEntries, live: Any) -> Any:
        result = super().base_result(slot, entries, None if slot.form.is_batch else live)
        if not slot.form.is_batch:
            return result
        return *result[:-1], np.array([{} for _ in range(self.num_rows)])


def _copy(result: Any, below: Below) -> tuple[Any, ...] | None:
    *values, infos = result
    return copy_result((*values, list(infos)), below)


class TianshouStack(VectorStack):
    """A vector env of Tianshou; each wrapper of it and of its sub-envs is a stage.

    Values are batched, ``[N, ...]`` for N sub-envs.
    """

    kind = "tianshou"
    done_keys = ("done", *FLAGS)
    level_type = TianshouLevels
    local_class = "DummyVectorEnv"

    def __init__(self, target: Any) -> None:
        if target.is_async:
            raise ArgumentError(
                "a vector env that steps its sub-envs asynchronously is not supported",
                hint="leave out wait_num and timeout",
            )
        super().__init__(target, list_levels(target))
        self._progress = Progress()

    @property
    def has_sub_envs(self) -> bool:
        return type(self.core).__name__ == self.local_class

    def adapter(self, level: Level, name: str | None = None) -> VecEnvAdapter:
        stepped = None if level.in_rows else SteppedVectorEnv(level.owner)
        return VecEnvAdapter(level, name, stepped)

    def level_state(self, level: Level) -> dict[str, Tensor]:
        """Return copies of the numbers that a level keeps; the vector env has none."""
        return {} if level.owner is self.core else super().level_state(level)

    def observed_levels(self) -> TianshouLevels:
        levels = TianshouLevels(self.target, self.levels, self.name)
        levels.progress = self._progress
        return levels

    def seed(self, seed: int) -> None:
        self._progress.is_seeding = True
        try:
            self.target.seed(seed)
        finally:
            self._progress.is_seeding = False

    def paused_learning(self) -> AbstractContextManager[object]:
        owners = [owner for owner in self.state_owners() if "update_obs_rms" in vars(owner)]
        return Patches([(owner, "update_obs_rms", False) for owner in owners])

    def driver(self, policy: object = None) -> TianshouDriver:
        """See :class:`~tdx.stacks.Stack`; the policy takes observations."""
        return TianshouDriver(self, policy)

    def close(self) -> None:
        if not self.core.is_closed:
            self.target.close()


class TianshouDriver(VectorDriver):
    """Resets and steps a vector env as Tianshou's collectors do: they reset what has ended."""

    def __init__(self, stack: TianshouStack, policy: object) -> None:
        super().__init__(stack, policy)
        self._seed = stack.seed
        self._ended: list[int] = []

    def _reset(self, seed: int | None) -> object:
        env, ended = self._stack.target, self._ended
        self._ended = []
        if seed is not None:
            self._seed(seed)
        observations = env.reset(ended or None)[0]
        if not ended:
            return observations
        latest = np.array(self._observation)
        latest[ended] = observations
        return latest

    def _read(self, result: object) -> tuple[object, bool]:
        parts = self._check_result(result, "step", _PARTS)
        self._ended = np.flatnonzero(np.logical_or(parts[2], parts[3])).tolist()
        return parts[0], bool(self._ended)

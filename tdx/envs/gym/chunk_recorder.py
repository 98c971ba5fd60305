"""Records one chunk of steps of Gymnasium envs, and converts it to columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from tdx.core.envs.done_flags import expand_mask
from tdx.core.planned.collectors import Stop
from tdx.core.planned.columns import CollectedSteps, flatten
from tdx.core.planned.immediate import ImmediateStages
from tdx.envs.gym.interface import Batch
from tdx.envs.gym.observation_store import MappedStore
from tdx.envs.gym.single_env import RawEnv, reward_rows
from tdx.envs.gym.values import WrongValueError
from tdx.foundation.keys import NestedKey
from tdx.foundation.tensordicts import new_tensordict
from tdx.specs.arguments import Value

EndedRow = tuple[int, bool, bool]
"""Index of an env, ``terminated`` and ``truncated``."""


@dataclass(frozen=True, slots=True)
class RowSettings:
    """The envs of a loop and the chain around them."""

    envs: tuple[RawEnv, ...]
    batch_size: torch.Size  # [] for one env, or [n]
    max_episode_steps: int  # after which the chain ends an episode
    immediate: ImmediateStages  # the stages that run in each step

    @property
    def single(self) -> bool:
        """True if there is one env and no batch dim."""
        return not self.batch_size


class ChunkRecorder:
    """Records the steps of one chunk, and converts them to columns.

    Args:
        settings: The envs and the chain around them.
        limits: For each env, the step at which the chain truncates its episode.
        stop: ``any``: stop at the first done flag. ``never``: reset the rows that are done.
        length: Maximum number of steps.

    Attributes:
        count: Number of complete steps, which become the columns.
        tried: Number of steps in which the env got an action, also those dropped after an error.
        rewards: Reward of each row in each step; its length tells which steps are complete.
        ends: Step, row, ``terminated`` and ``truncated`` of each end of an episode.
        times: Step after each reset.
        reset_rows: Rows of each reset.
        reset_observations: Observation of each of these rows.
        inputs: What the policy side wrote, as columns.
    """

    def __init__(self, settings: RowSettings, limits: list[int], stop: Stop, length: int) -> None:
        self.settings, self.length = settings, length
        self.limits = limits
        self.stops = stop == "any"
        self.store = settings.envs[0].create_store(length * len(settings.envs))
        self.count = self.tried = 0
        self.stopped = False
        self.error: Exception | None = None
        self.observations: Batch = []
        self.rewards: list[object] = []
        self.ends: list[tuple[int, int, bool, bool]] = []
        self.times: list[int] = []
        self.reset_rows: list[list[int]] = []
        self.reset_observations: list[object] = []
        self.inputs: dict[NestedKey, Tensor] = {}

    def convert(self) -> None:
        """Convert the values of the loop; a wrong value ends the chunk before its step."""
        env_count = len(self.settings.envs)
        while True:
            size = self.count * env_count
            try:
                self._reward_rows = reward_rows(self.rewards[:size])
                self.observations = self.store.rows(size)
                return
            except WrongValueError as wrong:
                step, row = divmod(wrong.index or 0, env_count)
                self.fail(self._with_row(wrong, row), wrong, count=step)

    def _with_row(self, wrong: WrongValueError, row: int) -> Exception:
        """Return the error with the name of the env and its row."""
        env = self.settings.envs[row]
        return env.failure("step", wrong, None if self.settings.single else row)

    def end_rows(
        self,
        index: int,
        ended_rows: list[EndedRow],
        root: dict[NestedKey, Value] | None = None,
    ) -> bool:
        """Record the rows that ended and reset them; return True if the rollout stops instead."""
        self.ends.extend((index, row, bool(term), bool(trunc)) for row, term, trunc in ended_rows)
        if self.stops:
            self.stopped = True
            return True
        if index + 1 < self.length:
            self._reset_rows(index, [row for row, _, _ in ended_rows])
            if root is not None:
                env_count = len(self.settings.envs)
                observed = list(self.store.rows((index + 1) * env_count)[-env_count:])
                latest = self.reset_rows[-1]
                for row, observation in zip(
                    latest, self.reset_observations[-len(latest) :], strict=True
                ):
                    observed[row] = observation
                root.update(self._root_after_reset(root, observed))
        return False

    def _root_after_reset(
        self, root: dict[NestedKey, Value], observed: Sequence[object]
    ) -> dict[NestedKey, Value]:
        """Return the root entries that the latest reset changed."""
        settings = self.settings
        fields = stack_observations(settings.envs[0], observed)
        flag = torch.zeros(len(settings.envs), 1, dtype=torch.bool)
        fields |= {name: flag.clone() for name in ("done", "terminated", "truncated")}
        if settings.single:
            fields = {key: value[0] for key, value in fields.items()}
        mask = self._mask(-1)
        after = settings.immediate.reset(root, fields, {"_reset": mask})
        if settings.single:
            return after
        return {key: merge_rows(mask, value, root.get(key)) for key, value in after.items()}

    def _reset_rows(self, index: int, rows: list[int]) -> None:
        self.times.append(index + 1)
        self.reset_rows.append(rows)
        for row in rows:
            env = self.settings.envs[row]
            try:
                self.reset_observations.append(env.keep(env.reset()))
            except Exception as error:
                self._undo_reset()
                at = None if self.settings.single else row
                raise env.failure("reset", error, at) from error
            self.limits[row] = index + self.settings.max_episode_steps

    def _undo_reset(self) -> None:
        """Remove the last reset, whose rows may be incomplete."""
        self.times.pop()
        self.reset_rows.pop()
        del self.reset_observations[sum(map(len, self.reset_rows)) :]

    def fail(
        self, error: Exception, cause: Exception | None = None, count: int | None = None
    ) -> None:
        """Keep only the complete steps, and store the error that follows them."""
        if isinstance(error, WrongValueError):
            error = self._with_row(error, error.index or 0)
        self.count = len(self.rewards) // len(self.settings.envs) if count is None else count
        self.stopped = False
        if cause is not None and cause is not error:
            error.__cause__ = cause
        self.error = error

    def _mask(self, reset: int) -> Tensor:
        mask = np.zeros((len(self.settings.envs), 1), np.bool_)
        mask[self.reset_rows[reset]] = True
        return torch.from_numpy(mask[0] if self.settings.single else mask)

    def result(self, first: Mapping[NestedKey, Tensor]) -> CollectedSteps:
        """Return the complete steps as columns."""
        settings, count, env_count = self.settings, self.count, len(self.settings.envs)
        result = CollectedSteps(
            count,
            settings.batch_size,
            first,
            stopped=self.stopped,
            error=self.error,
            inputs={key: value[:count] for key, value in self.inputs.items()},
        )
        if not count:
            return result
        while self.times and self.times[-1] >= count:
            # The reset belongs to an incomplete step.
            self._undo_reset()
        raw, shape = settings.envs[0], (count, *settings.batch_size)
        flags = np.zeros((2, count, env_count, 1), np.bool_)
        for index, row, terminated, truncated in self.ends:
            if index < count:
                flags[:, index, row, 0] = terminated, truncated
        flags = flags.reshape(2, *shape, 1)
        result.steps = {
            **unflatten(stack_observations(raw, self.observations[: count * env_count]), shape),
            "reward": torch.from_numpy(self._reward_rows[: count * env_count]).reshape(*shape, 1),
            "terminated": torch.from_numpy(flags[0]),
            "truncated": torch.from_numpy(flags[1]),
            "done": torch.from_numpy(flags[0] | flags[1]),
        }
        if isinstance(self.store, MappedStore):
            result.last_images = self.store.last_images(count)
        if self.times:
            self._add_resets(result)
        columns = settings.immediate.columns(count, len(self.times))
        result.immediate_steps, result.immediate_resets = columns
        settings.immediate.clear()
        return result

    def _add_resets(self, result: CollectedSteps) -> None:
        settings, env_count = self.settings, len(self.settings.envs)
        result.times = tuple(self.times)
        observed: list[object] = []
        if settings.single:
            observed = self.reset_observations
        else:
            position = 0
            for time, reset in zip(self.times, self.reset_rows, strict=True):
                before = list(self.observations[(time - 1) * env_count : time * env_count])
                for row in reset:
                    before[row] = self.reset_observations[position]
                    position += 1
                observed.extend(before)
        shape = (len(self.times), *settings.batch_size)
        none = torch.zeros(*shape, 1, dtype=torch.bool)
        result.resets = {
            **unflatten(stack_observations(settings.envs[0], observed), shape),
            **{name: none.clone() for name in ("done", "terminated", "truncated")},
        }
        result.masks = {"_reset": torch.stack([self._mask(i) for i in range(len(self.times))])}


def stack_observations(env: RawEnv, copies: Batch) -> dict[NestedKey, Tensor]:
    """Stack copied observations to entries ``[T, ...]``."""
    entries = env.stack(copies)
    if all(isinstance(value, Tensor) for value in entries.values()):
        return {key: value for key, value in entries.items()}  # noqa: C416 - widens the key
    return flatten(new_tensordict(entries, torch.Size((len(copies),)), None))


def unflatten(
    columns: Mapping[NestedKey, Tensor], shape: tuple[int, ...]
) -> dict[NestedKey, Tensor]:
    """Reshape columns ``[T * n, ...]`` to ``[*shape, ...]``."""
    return {key: value.reshape(*shape, *value.shape[1:]) for key, value in columns.items()}


def merge_rows(mask: Tensor, value: Tensor, before: object) -> Tensor:
    """Return an entry after a reset of some rows; the others keep their values."""
    if not isinstance(before, Tensor) or before.shape != value.shape:
        return value
    return torch.where(expand_mask(mask, value, mask.ndim - 1), value, before)

"""One chunk of steps of Gymnasium envs: what goes into its loop, and what it collects."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from gymnasium.error import ResetNeeded
from torch import Tensor

from tdx.core.envs.done_flags import expand_mask
from tdx.core.envs.policies import ActionCheck
from tdx.core.planned.actions import PolicyActions
from tdx.core.planned.collectors import Stop
from tdx.core.planned.columns import CollectedSteps, flatten
from tdx.core.planned.stages import ImmediateStages
from tdx.envs.gym.raw_rows import DenseStore, RawEnv, reward_column
from tdx.envs.gym.values import WrongValueError, reward_rows
from tdx.keys import NestedKey
from tdx.tensordicts import new_tensordict

NOTHING: Mapping[NestedKey, Tensor] = {}

NEVER = 2**62
"""A step that no rollout reaches."""


@dataclass(frozen=True, slots=True)
class RowSettings:
    """What the loops over Gymnasium envs need to know.

    Args:
        envs: The envs.
        batch_size: Batch size of the env that they make up: ``[]`` for one, or ``[n]``.
        max_episode_steps: Number of steps after which the chain ends an episode.
        immediate: The stages that run in each step.
        check: Checks the actions of a policy against the action spec.
    """

    envs: tuple[RawEnv, ...]
    batch_size: torch.Size
    max_episode_steps: int
    immediate: ImmediateStages
    check: ActionCheck

    @property
    def single(self) -> bool:
        """True if there is one env and no batch dim."""
        return not self.batch_size


class EntryLists:
    """Entries of many steps, by key."""

    def __init__(self) -> None:
        self._values: dict[NestedKey, list[Tensor]] = {}

    def add(self, *parts: Mapping[NestedKey, Tensor]) -> None:
        values = self._values
        for entries in parts:
            for key, value in entries.items():
                if key in values:
                    values[key].append(value)
                else:
                    values[key] = [value]

    def of(self, key: NestedKey) -> list[Tensor]:
        return self._values.setdefault(key, [])

    def columns(self, length: int) -> dict[NestedKey, Tensor]:
        return {key: torch.stack(values[:length]) for key, values in self._values.items() if length}


class ActionDecoder:
    """Maps what a policy wrote to the actions that the envs take.

    Args:
        envs: The envs.
        inputs: The policy, with the inverse of the chain.
        single: True if there is no batch dim.
    """

    def __init__(self, envs: Sequence[RawEnv], inputs: PolicyActions, single: bool) -> None:
        self._envs, self._inputs, self._single = envs, inputs, single
        inverse = inputs.inverse
        is_tensor = inverse.action_keys == ("action",) and not inverse.stages
        direct = is_tensor and envs[0].decode_value is not None
        self._values = [env.decode_value for env in envs] if direct else None
        self.is_direct = direct

    def __call__(
        self, written: Mapping[NestedKey, Tensor]
    ) -> tuple[Sequence[Any], Mapping[NestedKey, Tensor]]:
        if self._values is not None:
            action = written["action"]
            parts = (action,) if self._single else action.unbind(0)
            pairs = zip(self._values, parts, strict=True)
            return [decode(part) for decode, part in pairs if decode is not None], {}
        inner, handed_out = self._inputs.apply_inverse(written)
        given = (inner.unsqueeze(0),) if self._single else inner.unsqueeze(1).unbind(0)
        pairs_of_rows = zip(self._envs, given, strict=True)
        return [env.decode(part)[0] for env, part in pairs_of_rows], handed_out


class StepFields:
    """Entries of one step of the envs, as far as an immediate stage or the policy reads them.

    Args:
        env: One of the envs.
        single: True if there is no batch dim.
        reads: Keys that are read.
    """

    def __init__(self, env: RawEnv, single: bool, reads: Collection[NestedKey]) -> None:
        self._env, self._single = env, single
        self._reward = "reward" in reads
        self._flags = not {"done", "terminated", "truncated"}.isdisjoint(reads)
        self.is_more_than_observation = self._reward or self._flags or not env.flat

    def __call__(
        self, observed: list[Any], rewards: list[Any], over: list[tuple[int, bool, bool]]
    ) -> dict[NestedKey, Any]:
        single = self._single
        fields: dict[NestedKey, Any]
        fields = stack_observations(self._env, observed)
        if single:
            fields = {key: value[0] for key, value in fields.items()}
        if self._reward:
            column = reward_column(rewards)
            fields["reward"] = column[0] if single else column
        if self._flags:
            flags = np.zeros((2, len(observed), 1), np.bool_)
            for row, terminated, truncated in over:
                flags[:, row, 0] = terminated, truncated
            both = {"terminated": flags[0], "truncated": flags[1], "done": flags[0] | flags[1]}
            for name, value in both.items():
                fields[name] = torch.from_numpy(value[0] if single else value)
        return fields


def with_first_reset(env: RawEnv) -> Callable[[Any], Any]:
    """Return the step of an env; it resets an env that was never reset, as a single step does."""
    step, reset = env.step, env.reset

    def step_after_reset(action: Any) -> Any:
        try:
            return step(action)
        except ResetNeeded:
            reset()
            return step(action)

    return step_after_reset


def stack_observations(env: RawEnv, kept: Sequence[Any]) -> dict[NestedKey, Tensor]:
    """Stack kept observations to entries ``[T, ...]``."""
    entries = env.stack(kept)
    if all(isinstance(value, Tensor) for value in entries.values()):
        return {key: value for key, value in entries.items()}  # noqa: C416 - widens the key
    return flatten(new_tensordict(entries, torch.Size((len(kept),)), None))


def unflatten(
    columns: Mapping[NestedKey, Tensor], shape: tuple[int, ...]
) -> dict[NestedKey, Tensor]:
    """Reshape columns ``[T * n, ...]`` to ``[*shape, ...]``."""
    return {key: value.reshape(*shape, *value.shape[1:]) for key, value in columns.items()}


def merge_rows(mask: Tensor, value: Tensor, before: Any) -> Tensor:
    """Return an entry after a reset of some rows; the others keep their values."""
    if not isinstance(before, Tensor) or before.shape != value.shape:
        return value
    return torch.where(expand_mask(mask, value, mask.ndim - 1), value, before)


class GymRun:
    """The loop of one chunk, and what it has collected so far."""

    def __init__(self, settings: RowSettings, limits: list[int], stop: Stop, length: int) -> None:
        self.settings, self.limits, self.length = settings, limits, length
        self.stops = stop == "any"
        self.keep = settings.envs[0].keeping(length * len(settings.envs))
        self.count = self.tried = 0
        self.stopped = False
        self.error: Exception | None = None
        self.observations: Any = []
        self.store: DenseStore | None = None
        self.rewards: list[Any] = []
        self.ends: list[tuple[int, int, bool, bool]] = []
        self.times: list[int] = []
        self.reset_rows: list[list[int]] = []
        self.reset_observations: list[Any] = []
        self.inputs: dict[NestedKey, Tensor] = {}
        self.has_reset_first = False

    def put(self) -> Callable[[int, Any], Any]:
        """Return what keeps an observation at its place, in one array if all have one layout."""
        env_count, env = len(self.settings.envs), self.settings.envs[0]
        self.store = env.store(self.length * env_count)
        if self.store is not None:
            # Setting an item of an array takes a third of the time of any other copy.
            return self.store.putter()
        add, keep = self.observations.append, self.keep
        return lambda place, observation: add(keep(observation))

    def convert(self) -> None:
        """Convert the values of the loop; a wrong value ends the chunk before its step."""
        env_count = len(self.settings.envs)
        self._reward_rows = self._converted(lambda: reward_rows(self.rewards))
        if self.store is not None:
            store = self.store
            self.observations = self._converted(lambda: store.rows(self.count * env_count))

    def _converted(self, convert: Callable[[], Any]) -> Any:
        try:
            return convert()
        except WrongValueError as wrong:
            step, row = divmod(wrong.index or 0, len(self.settings.envs))
            self.fail(self._with_row(wrong, row), wrong, count=step)
            return convert()

    def _with_row(self, wrong: WrongValueError, row: int) -> Exception:
        """Return the error with the name of the env and its row."""
        env = self.settings.envs[row]
        return env.failure("step", wrong, None if self.settings.single else row)

    def root_after_reset(
        self, root: dict[NestedKey, Any], observed: list[Any]
    ) -> dict[NestedKey, Any]:
        """Return the root entries that the latest reset changed."""
        settings = self.settings
        fields = stack_observations(settings.envs[0], self._observations_after(-1, observed))
        flag = torch.zeros(len(settings.envs), 1, dtype=torch.bool)
        fields |= {name: flag.clone() for name in ("done", "terminated", "truncated")}
        if settings.single:
            fields = {key: value[0] for key, value in fields.items()}
        mask = self._mask(-1)
        after = settings.immediate.reset(root, fields, {"_reset": mask})
        return {key: merge_rows(mask, value, root.get(key)) for key, value in after.items()}

    def end_rows(self, index: int, over: list[tuple[int, bool, bool]]) -> bool:
        """Record the rows that ended and reset them; return True if the rollout stops instead."""
        self.ends.extend((index, row, bool(term), bool(trunc)) for row, term, trunc in over)
        if self.stops:
            self.stopped = True
            return True
        if index + 1 < self.length:
            self.times.append(index + 1)
            self.reset_rows.append([row for row, _, _ in over])
            for row, _, _ in over:
                env = self.settings.envs[row]
                try:
                    self.reset_observations.append(env.keep(env.reset()))
                except Exception as error:
                    self._undo_reset()
                    raise env.failure(
                        "reset", error, None if self.settings.single else row
                    ) from error
                self.limits[row] = index + self.settings.max_episode_steps
        return False

    def _undo_reset(self) -> None:
        """Forget the last reset, however many of its rows were reset."""
        self.times.pop()
        self.reset_rows.pop()
        del self.reset_observations[sum(map(len, self.reset_rows)) :]

    def fail(
        self, error: Exception, cause: Exception | None = None, count: int | None = None
    ) -> None:
        """Keep the complete steps, and the error after them."""
        env_count = len(self.settings.envs)
        if isinstance(error, WrongValueError):
            error = self._with_row(error, error.index or 0)
        self.count = len(self.rewards) // env_count if count is None else count
        complete = self.count * env_count
        self.observations = self.observations[:complete]
        del self.rewards[complete:]
        self.ends = [end for end in self.ends if end[0] < self.count]
        while self.times and self.times[-1] >= self.count:
            # The reset belongs to an incomplete step.
            self._undo_reset()
        self.stopped = False
        if cause is not None and cause is not error:
            error.__cause__ = cause
        self.error = error

    def _mask(self, reset: int) -> Tensor:
        mask = torch.zeros(len(self.settings.envs), 1, dtype=torch.bool)
        mask[self.reset_rows[reset]] = True
        return mask[0] if self.settings.single else mask

    def _observations_after(self, reset: int, before: list[Any]) -> list[Any]:
        """Return the observations after a reset; rows that were not reset keep theirs."""
        place = reset % len(self.reset_rows)
        start = sum(len(rows) for rows in self.reset_rows[:place])
        observed = list(before)
        for offset, row in enumerate(self.reset_rows[place]):
            observed[row] = self.reset_observations[start + offset]
        return observed

    def collected(self) -> CollectedSteps:
        """Return what the loop has collected, as columns."""
        settings, count, env_count = self.settings, self.count, len(self.settings.envs)
        result = CollectedSteps(count, stopped=self.stopped, error=self.error, inputs=self.inputs)
        if not count:
            return result
        raw, shape = settings.envs[0], (count, *settings.batch_size)
        flags = np.zeros((2, count, env_count, 1), np.bool_)
        for index, row, terminated, truncated in self.ends:
            flags[:, index, row, 0] = terminated, truncated
        flags = flags.reshape(2, *shape, 1)
        result.steps = {
            **unflatten(stack_observations(raw, self.observations[: count * env_count]), shape),
            "reward": torch.from_numpy(self._reward_rows[: count * env_count]).reshape(*shape, 1),
            "terminated": torch.from_numpy(flags[0]),
            "truncated": torch.from_numpy(flags[1]),
            "done": torch.from_numpy(flags[0] | flags[1]),
        }
        if self.times:
            self._add_resets(result)
        columns = settings.immediate.columns(count, len(self.times))
        result.immediate_steps, result.immediate_resets = columns
        settings.immediate.clear()
        return result

    def _add_resets(self, result: CollectedSteps) -> None:
        settings, env_count = self.settings, len(self.settings.envs)
        result.times = tuple(self.times)
        observed: list[Any] = []
        if settings.single:
            observed = self.reset_observations
        else:
            place = 0
            for time, reset in zip(self.times, self.reset_rows, strict=True):
                before = list(self.observations[(time - 1) * env_count : time * env_count])
                for row in reset:
                    before[row] = self.reset_observations[place]
                    place += 1
                observed.extend(before)
        shape = (len(self.times), *settings.batch_size)
        none = torch.zeros(*shape, 1, dtype=torch.bool)
        result.resets = {
            **unflatten(stack_observations(settings.envs[0], observed), shape),
            **{name: none.clone() for name in ("done", "terminated", "truncated")},
        }
        result.masks = {"_reset": torch.stack([self._mask(i) for i in range(len(self.times))])}

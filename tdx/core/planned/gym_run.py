"""One chunk of steps of Gymnasium envs: what was kept, what ended and what began anew."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from tdx.core.planned.collected import Collected, Stop
from tdx.core.planned.gym_values import merged, shaped, stacked
from tdx.envs.gym.raw_rows import DenseStore
from tdx.envs.gym.values import WrongValueError, reward_rows
from tdx.keys import NestedKey

if TYPE_CHECKING:
    from tdx.core.planned.gym_rows import GymRows


class GymRun:
    """One chunk's loop, and what it keeps."""

    def __init__(self, rows: GymRows, limits: list[int], stop: Stop, length: int) -> None:
        self.rows, self.limits, self.length = rows, limits, length
        self.stops = stop == "any"
        self.keep = rows.envs[0].keeping(length * len(rows.envs))
        self.made = self.tried = 0
        self.stopped = False
        self.error: Exception | None = None
        self.observations: Any = []
        self.store: DenseStore | None = None
        self.rewards: list[Any] = []
        self.ends: list[tuple[int, int, bool, bool]] = []
        self.times: list[int] = []
        self.reset_rows: list[list[int]] = []
        self.begun: list[Any] = []
        self.inputs: dict[NestedKey, Tensor] = {}
        self.begun_first = False

    def put(self) -> Callable[[int, Any], Any]:
        """What keeps an observation at its place; into one array, where all are alike."""
        count, env = len(self.rows.envs), self.rows.envs[0]
        self.store = env.store(self.length * count)
        if self.store is not None:
            # Setting an item of an array copies in a third of the time of anything else.
            return self.store.putter()
        add, keep = self.observations.append, self.keep
        return lambda place, observation: add(keep(observation))

    def convert(self) -> None:
        """Convert what the loop kept as it came; a wrong value ends the chunk before its step."""
        count = len(self.rows.envs)
        self._reward_rows = self._converted(lambda: reward_rows(self.rewards))
        if self.store is not None:
            store = self.store
            self.observations = self._converted(lambda: store.rows(self.made * count))

    def _converted(self, convert: Callable[[], Any]) -> Any:
        try:
            return convert()
        except WrongValueError as wrong:
            step, row = divmod(wrong.index or 0, len(self.rows.envs))
            self.failed(self._named(wrong, row), wrong, made=step)
            return convert()

    def _named(self, wrong: WrongValueError, row: int) -> Exception:
        """The error to raise instead, which names the env and its row."""
        env = self.rows.envs[row]
        return env.failure("step", wrong, None if self.rows.single else row)

    def begun_root(self, root: dict[NestedKey, Any], observed: list[Any]) -> dict[NestedKey, Any]:
        """What the root holds anew after the reset that was just made."""
        rows = self.rows
        fields = stacked(rows.envs[0], self._begun_rows(-1, observed))
        flag = torch.zeros(len(rows.envs), 1, dtype=torch.bool)
        fields |= {name: flag.clone() for name in ("done", "terminated", "truncated")}
        if rows.single:
            fields = {key: value[0] for key, value in fields.items()}
        mask = self._mask(-1)
        after = rows.now.reset(root, fields, {"_reset": mask})
        return {key: merged(mask, value, root.get(key)) for key, value in after.items()}

    # Ends

    def ended(self, index: int, over: list[tuple[int, bool, bool]]) -> bool:
        """Note which rows ended, and begin them anew; whether to stop instead."""
        self.ends.extend((index, row, bool(term), bool(trunc)) for row, term, trunc in over)
        if self.stops:
            self.stopped = True
            return True
        if index + 1 < self.length:
            self.times.append(index + 1)
            self.reset_rows.append([row for row, _, _ in over])
            for row, _, _ in over:
                env = self.rows.envs[row]
                try:
                    self.begun.append(env.keep(env.reset()))
                except Exception as error:
                    self._undo_reset()
                    raise env.failure("reset", error, None if self.rows.single else row) from error
                self.limits[row] = index + self.rows.most
        return False

    def _undo_reset(self) -> None:
        """Forget the last reset, however many of its rows were begun."""
        self.times.pop()
        self.reset_rows.pop()
        del self.begun[sum(map(len, self.reset_rows)) :]

    def failed(
        self, error: Exception, cause: Exception | None = None, made: int | None = None
    ) -> None:
        """Keep the steps that were complete, and what went wrong after them."""
        count = len(self.rows.envs)
        if isinstance(error, WrongValueError):
            error = self._named(error, error.index or 0)
        self.made = len(self.rewards) // count if made is None else made
        complete = self.made * count
        self.observations = self.observations[:complete]
        del self.rewards[complete:]
        self.ends = [end for end in self.ends if end[0] < self.made]
        while self.times and self.times[-1] >= self.made:
            # The reset belongs to a step that was not made.
            self._undo_reset()
        self.stopped = False
        if cause is not None and cause is not error:
            error.__cause__ = cause
        self.error = error

    # Columns

    def _mask(self, reset: int) -> Tensor:
        mask = torch.zeros(len(self.rows.envs), 1, dtype=torch.bool)
        mask[self.reset_rows[reset]] = True
        return mask[0] if self.rows.single else mask

    def _begun_rows(self, reset: int, before: list[Any]) -> list[Any]:
        """What the rows of a reset observe: those that were not reset, what they did before."""
        place = reset % len(self.reset_rows)
        start = sum(len(rows) for rows in self.reset_rows[:place])
        observed = list(before)
        for offset, row in enumerate(self.reset_rows[place]):
            observed[row] = self.begun[start + offset]
        return observed

    def collected(self) -> Collected:
        """What the loop has gathered, as columns."""
        rows, made, count = self.rows, self.made, len(self.rows.envs)
        result = Collected(made, stopped=self.stopped, error=self.error, inputs=self.inputs)
        if not made:
            return result
        raw, shape = rows.envs[0], (made, *rows.batch_size)
        flags = np.zeros((2, made, count, 1), np.bool_)
        for index, row, terminated, truncated in self.ends:
            flags[:, index, row, 0] = terminated, truncated
        flags = flags.reshape(2, *shape, 1)
        result.steps = {
            **shaped(stacked(raw, self.observations[: made * count]), shape),
            "reward": torch.from_numpy(self._reward_rows[: made * count]).reshape(*shape, 1),
            "terminated": torch.from_numpy(flags[0]),
            "truncated": torch.from_numpy(flags[1]),
            "done": torch.from_numpy(flags[0] | flags[1]),
        }
        if self.times:
            self._add_resets(result)
        columns = rows.now.columns(made, len(self.times))
        result.now_steps, result.now_resets = columns
        rows.now.forget()
        return result

    def _add_resets(self, result: Collected) -> None:
        rows, count = self.rows, len(self.rows.envs)
        result.times = tuple(self.times)
        observed: list[Any] = []
        if rows.single:
            observed = self.begun
        else:
            place = 0
            for time, reset in zip(self.times, self.reset_rows, strict=True):
                before = list(self.observations[(time - 1) * count : time * count])
                for row in reset:
                    before[row] = self.begun[place]
                    place += 1
                observed.extend(before)
        shape = (len(self.times), *rows.batch_size)
        none = torch.zeros(*shape, 1, dtype=torch.bool)
        result.resets = {
            **shaped(stacked(rows.envs[0], observed), shape),
            **{name: none.clone() for name in ("done", "terminated", "truncated")},
        }
        result.masks = {"_reset": torch.stack([self._mask(i) for i in range(len(self.times))])}

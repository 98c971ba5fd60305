"""Collects the steps of single Gymnasium envs, one or a few in turns, without TensorDicts."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from gymnasium.error import ResetNeeded
from torch import Tensor

from tdx.engine.planned.collected import Collected, Stop
from tdx.engine.planned.columns import leaves_of
from tdx.engine.planned.inputs import ClosedLoop, Inputs, OpenLoop
from tdx.engine.planned.now_program import NowProgram
from tdx.envs.base.done_flags import as_row_mask
from tdx.envs.base.policies import ActionCheck
from tdx.envs.gym.raw_rows import RawEnv, reward_column
from tdx.errors import EnvError, Where
from tdx.keys import NestedKey
from tdx.tensordicts import new_tensordict
from tdx.transforms.base.chunk import StepLimit

NEVER = 2**62
"""A step that no rollout reaches."""

_NOTHING: Mapping[NestedKey, Tensor] = {}


class GymRows:
    """Steps ``n`` Gymnasium envs in turns; its columns are ``[T, ...]`` or ``[T, n, ...]``.

    Args:
        envs: the envs.
        batch_size: of the env that they make up: ``[]`` for one, or ``[n]``.
        limits: after how many steps the chain ends an episode.
        now: the stages that run along.
        check: holds a policy's actions against the action spec.
    """

    def __init__(
        self,
        envs: Sequence[RawEnv],
        batch_size: torch.Size,
        limits: Sequence[StepLimit],
        now: NowProgram,
        check: ActionCheck,
    ) -> None:
        self._envs, self._batch_size = tuple(envs), batch_size
        self._single = not batch_size
        self._limits = tuple(limits)
        self._most = min((limit.most for limit in limits), default=NEVER)
        self._now, self._check = now, check

    def collect(
        self, first: Mapping[NestedKey, Tensor], inputs: Inputs, length: int, stop: Stop
    ) -> Collected:
        """See :class:`~tdx.engine.planned.collected.Collector`."""
        run = _Run(self, self._first_limits(first), stop, length)
        if isinstance(inputs, OpenLoop):
            drawn = inputs.draw(length)
            if drawn.length and self._single:
                run.play_one(self._envs[0].decode(drawn.inner))
            elif drawn.length:
                run.play(self._decoded(drawn.inner))
            drawn.keep(run.tried)
            if drawn.error is not None and run.error is None and not run.stopped:
                run._failed(drawn.error)
            run.inputs = {key: value[: run.made] for key, value in drawn.columns.items()}
        else:
            assert isinstance(inputs, ClosedLoop)
            (run.follow_one if self._single else run.follow)(inputs, first)
        return run.collected()

    def _decoded(self, inner: Any) -> Sequence[Sequence[Any]]:
        """The actions of each step, for each env."""
        by_env = [env.decode(inner[:, index]) for index, env in enumerate(self._envs)]
        return list(zip(*by_env, strict=True))

    def _first_limits(self, first: Mapping[NestedKey, Tensor]) -> list[int]:
        """In which step each env's episode is cut off, from how far it has got."""
        found = [NEVER] * len(self._envs)
        for limit in self._limits:
            counted = limit.counted(first)
            counts = [0] * len(found) if counted is None else counted.reshape(-1).tolist()
            found = [
                min(known, limit.most - count - 1)
                for known, count in zip(found, counts, strict=True)
            ]
        return found


class _Run:
    """One chunk's loop, and what it keeps."""

    def __init__(self, rows: GymRows, limits: list[int], stop: Stop, length: int) -> None:
        self.rows, self.limits, self.length = rows, limits, length
        self.stops = stop == "any"
        self.keep = rows._envs[0].keeping(length * len(rows._envs))
        self.made = self.tried = 0
        self.stopped = False
        self.error: Exception | None = None
        self.observations: Any = []
        self.rewards: list[Any] = []
        self.ends: list[tuple[int, int, bool, bool]] = []
        self.times: list[int] = []
        self.reset_rows: list[list[int]] = []
        self.begun: list[Any] = []
        self.inputs: dict[NestedKey, Tensor] = {}
        self.begun_first = False

    # Loops

    def play_one(self, actions: Sequence[Any]) -> None:
        """The loop over one env with actions that are there already."""
        env, limit = self.rows._envs[0], self.limits[0]
        step, put, add_reward = env.step, self._put(), self.rewards.append
        index = -1
        try:
            for index, action in enumerate(actions):
                observation, reward, terminated, truncated, _ = step(action)
                put(index, observation)
                add_reward(reward)
                if terminated or truncated or index >= limit:
                    if self._ended(index, [(0, terminated, truncated)]):
                        break
                    limit = self.limits[0]
            self.made = self.tried = index + 1
            self._look_at(env, observation)
        except ResetNeeded as error:
            if index or self.begun_first:
                self.tried = index + 1
                self._failed(env.failure("step", error), error)
            else:
                self._begin_first(env, actions)
        except Exception as error:
            self.tried = index + 1
            self._failed(env.failure("step", error), error)

    def _put(self) -> Callable[[int, Any], Any]:
        """What keeps an observation at its place; into one array, where all are alike."""
        count, env = len(self.rows._envs), self.rows._envs[0]
        store = env.store(self.length * count)
        if store is not None:
            self.observations = store
            # Setting an item of an array copies and casts in a third of the time of anything else.
            return store.__setitem__
        add, keep = self.observations.append, self.keep
        return lambda place, observation: add(keep(observation))

    def _look_at(self, env: RawEnv, observation: Any) -> None:
        """Raise where an observation was spread over a row, because it is of another shape."""
        if isinstance(self.observations, np.ndarray):
            found, wanted = np.shape(observation), self.observations.shape[1:]
            if found != wanted:
                raise EnvError(
                    f"the observation is of shape {found}, its space says {wanted}",
                    hint="mend the env's observation_space",
                    where=Where(env=env.conversion.name),
                )

    def _begin_first(self, env: RawEnv, actions: Sequence[Any]) -> None:
        """Reset an env that never was, as a single step does."""
        self.begun_first = True
        try:
            env.reset()
        except Exception as error:
            self.tried = 1
            self._failed(env.failure("reset", error), error)
        else:
            self.play_one(actions)

    def play(self, actions: Sequence[Sequence[Any]]) -> None:
        """The loop over several envs with actions that are there already."""
        envs, limits = self.rows._envs, self.limits
        steps = [_with_first_reset(env) for env in envs]
        put, add_reward, place = self._put(), self.rewards.append, -1
        index, env = -1, envs[0]
        try:
            for index, each in enumerate(actions):
                over = []
                for row, step in enumerate(steps):
                    env = envs[row]
                    observation, reward, terminated, truncated, _ = step(each[row])
                    put(place := place + 1, observation)
                    add_reward(reward)
                    if terminated or truncated or index >= limits[row]:
                        over.append((row, terminated, truncated))
                if over and self._ended(index, over):
                    break
            self.made = self.tried = index + 1
            self._look_at(env, observation)
        except Exception as error:
            self.tried = index + 1
            self._failed(env.failure("step", error), error)

    def follow_one(self, inputs: ClosedLoop, first: Mapping[NestedKey, Tensor]) -> None:
        """The loop over one env with a policy: that of :meth:`follow`, with nothing to spare."""
        rows, env, kept = self.rows, self.rows._envs[0], _Kept()
        step, keep, limit = _with_first_reset(env), self.keep, self.limits[0]
        check, step_now, act = rows._check, rows._now.step, inputs.policy.act
        is_plain, next_step = check.plain(), env.step
        add, add_reward = self.observations.append, self.rewards.append
        take = _Taker(rows._envs, inputs, True)
        value = env.decode_value if take.is_direct else None
        fields_of = _Fields(env, True, rows._now.reads)
        one = None if fields_of.is_more else env.one
        root: dict[NestedKey, Any] = dict(first)
        reads_back = not {*inputs.policy.writes, *inputs.way_in.handed_out}.isdisjoint(
            inputs.policy.reads
        )
        shown, made = _NOTHING, 0
        alone = value is not None and inputs.policy.writes == ("action",)
        add_action = kept.rows("action").append if alone else None
        try:
            for index in range(self.length):
                written = act(root)
                if value is not None:
                    given = written["action"]
                    if not is_plain(given):
                        check(written.get)
                    action = value(given)
                else:
                    check(written.get)
                    (action,), shown = take(written)
                try:
                    observation, reward, terminated, truncated, _ = step(action)
                except Exception as error:
                    raise check.rather(written.get, env.failure("step", error)) from error
                step, observed = next_step, keep(observation)
                add(observed)
                add_reward(reward)
                if add_action is not None:
                    add_action(written["action"])
                else:
                    kept.add(written, shown)
                if reads_back:
                    root.update(written)
                    root.update(shown)
                ended = terminated or truncated or index >= limit
                if one is not None:
                    fields: Any = one(observed)
                else:
                    over = [(0, terminated, truncated)] if ended else []
                    fields = fields_of([observed], [reward], over)
                root.update(step_now(root, fields))
                made = index + 1
                if ended:
                    if self._ended(index, [(0, terminated, truncated)]):
                        break
                    limit = self.limits[0]
                    if self.times and self.times[-1] == index + 1:
                        root.update(self._begun_root(root, [observed]))
            self.made = made
        except Exception as error:
            self._failed(error, made=made)
        self.inputs = kept.columns(self.made)

    def follow(self, inputs: ClosedLoop, first: Mapping[NestedKey, Tensor]) -> None:
        """The loop with a policy, which sees what the stages that run along make of each step."""
        rows, kept = self.rows, _Kept()
        check, step_now, act = rows._check, rows._now.step, inputs.act
        steps = [_with_first_reset(env) for env in rows._envs]
        add, add_reward, keep = self.observations.append, self.rewards.append, self.keep
        take = _Taker(rows._envs, inputs, rows._single)
        fields_of = _Fields(rows._envs[0], rows._single, rows._now.reads)
        root: dict[NestedKey, Any] = dict(first)
        made = 0
        try:
            for index in range(self.length):
                written = act(root)
                check(written.get)
                actions, shown = take(written)
                over = []
                start = len(self.observations)
                for row, step in enumerate(steps):
                    try:
                        observation, reward, terminated, truncated, _ = step(actions[row])
                    except Exception as error:
                        blamed = rows._envs[row].failure("step", error)
                        raise check.rather(written.get, blamed) from error
                    add(keep(observation))
                    add_reward(reward)
                    if terminated or truncated or index >= self.limits[row]:
                        over.append((row, terminated, truncated))
                kept.add(written, shown)
                root.update(written)
                root.update(shown)
                fields = fields_of(self.observations[start:], self.rewards[start:], over)
                root.update(step_now(root, fields))
                made = index + 1
                if over:
                    if self._ended(index, over):
                        break
                    if self.times and self.times[-1] == index + 1:
                        root.update(self._begun_root(root, self.observations[start:]))
            self.made = made
        except Exception as error:
            self._failed(error, made=made)
        self.inputs = kept.columns(self.made)

    def _begun_root(self, root: dict[NestedKey, Any], observed: list[Any]) -> dict[NestedKey, Any]:
        """What the root holds anew after the reset that was just made."""
        rows = self.rows
        fields = _stacked(rows._envs[0], self._begun_rows(-1, observed))
        flag = torch.zeros(len(rows._envs), 1, dtype=torch.bool)
        fields |= {name: flag.clone() for name in ("done", "terminated", "truncated")}
        if rows._single:
            fields = {key: value[0] for key, value in fields.items()}
        mask = self._mask(-1)
        after = rows._now.reset(root, fields, {"_reset": mask})
        return {key: _merged(mask, value, root.get(key)) for key, value in after.items()}

    # Ends

    def _ended(self, index: int, over: list[tuple[int, bool, bool]]) -> bool:
        """Note which rows ended, and begin them anew; whether to stop instead."""
        self.ends.extend((index, row, bool(term), bool(trunc)) for row, term, trunc in over)
        if self.stops:
            self.stopped = True
            return True
        if index + 1 < self.length:
            self.times.append(index + 1)
            self.reset_rows.append([row for row, _, _ in over])
            for row, _, _ in over:
                env = self.rows._envs[row]
                try:
                    observation = env.reset()
                except Exception as error:
                    self._undo_reset()
                    raise env.failure("reset", error) from error
                self.begun.append(env.keep(observation))
                self.limits[row] = index + self.rows._most
        return False

    def _undo_reset(self) -> None:
        rows = self.reset_rows.pop()
        self.times.pop()
        missing = len(self.begun) - sum(map(len, self.reset_rows))
        del self.begun[len(self.begun) - missing :]
        del rows

    def _failed(
        self, error: Exception, cause: Exception | None = None, made: int | None = None
    ) -> None:
        """Keep the steps that were complete, and what went wrong after them."""
        count = len(self.rows._envs)
        self.made = len(self.rewards) // count if made is None else made
        complete = self.made * count
        self.observations = self.observations[:complete]
        del self.rewards[complete:]
        self.ends = [end for end in self.ends if end[0] < self.made]
        if self.times and self.times[-1] >= self.made:
            # The reset belongs to a step that was not made.
            self._undo_reset()
        if cause is not None and cause is not error:
            error.__cause__ = cause
        self.error = error

    # Columns

    def _mask(self, reset: int) -> Tensor:
        mask = torch.zeros(len(self.rows._envs), 1, dtype=torch.bool)
        mask[self.reset_rows[reset]] = True
        return mask[0] if self.rows._single else mask

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
        rows, made, count = self.rows, self.made, len(self.rows._envs)
        result = Collected(made, stopped=self.stopped, error=self.error, inputs=self.inputs)
        if not made:
            return result
        raw, shape = rows._envs[0], (made, *rows._batch_size)
        flags = np.zeros((2, made, count, 1), np.bool_)
        for index, row, terminated, truncated in self.ends:
            flags[:, index, row, 0] = terminated, truncated
        flags = flags.reshape(2, *shape, 1)
        result.steps = {
            **_shaped(_stacked(raw, self.observations[: made * count]), shape),
            "reward": reward_column(self.rewards).reshape(*shape, 1),
            "terminated": torch.from_numpy(flags[0]),
            "truncated": torch.from_numpy(flags[1]),
            "done": torch.from_numpy(flags[0] | flags[1]),
        }
        if self.times:
            self._add_resets(result)
        columns = rows._now.columns(made, len(self.times))
        result.now_steps, result.now_resets = columns
        rows._now.forget()
        return result

    def _add_resets(self, result: Collected) -> None:
        rows, count = self.rows, len(self.rows._envs)
        result.times = tuple(self.times)
        observed: list[Any] = []
        if rows._single:
            observed = self.begun
        else:
            place = 0
            for time, reset in zip(self.times, self.reset_rows, strict=True):
                before = list(self.observations[(time - 1) * count : time * count])
                for row in reset:
                    before[row] = self.begun[place]
                    place += 1
                observed.extend(before)
        shape = (len(self.times), *rows._batch_size)
        none = torch.zeros(*shape, 1, dtype=torch.bool)
        result.resets = {
            **_shaped(_stacked(rows._envs[0], observed), shape),
            **{name: none.clone() for name in ("done", "terminated", "truncated")},
        }
        result.masks = {"_reset": torch.stack([self._mask(i) for i in range(len(self.times))])}


class _Kept:
    """The entries of many steps, by key."""

    def __init__(self) -> None:
        self._rows: dict[NestedKey, list[Tensor]] = {}

    def add(self, *parts: Mapping[NestedKey, Tensor]) -> None:
        rows = self._rows
        for entries in parts:
            for key, value in entries.items():
                if key in rows:
                    rows[key].append(value)
                else:
                    rows[key] = [value]

    def rows(self, key: NestedKey) -> list[Tensor]:
        return self._rows.setdefault(key, [])

    def columns(self, length: int) -> dict[NestedKey, Tensor]:
        return {key: torch.stack(rows[:length]) for key, rows in self._rows.items() if length}


class _Taker:
    """What each env takes, from what a policy wrote.

    Args:
        envs: the envs.
        inputs: the policy, with the chain's way in.
        single: whether there is no batch.
    """

    def __init__(self, envs: Sequence[RawEnv], inputs: ClosedLoop, single: bool) -> None:
        self._envs, self._inputs, self._single = envs, inputs, single
        direct = envs[0].decode_value is not None and not inputs.way_in.stages
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
        inner, shown = self._inputs.inward(written)
        given = (inner.unsqueeze(0),) if self._single else inner.unsqueeze(1).unbind(0)
        pairs_of_rows = zip(self._envs, given, strict=True)
        return [env.decode(part)[0] for env, part in pairs_of_rows], shown


class _Fields:
    """What a step of the envs returned, as far as somebody reads it step by step.

    Args:
        env: one of them.
        single: whether there is no batch.
        reads: the keys that are read.
    """

    def __init__(self, env: RawEnv, single: bool, reads: Collection[NestedKey]) -> None:
        self._env, self._single = env, single
        self._reward = "reward" in reads
        self._flags = not {"done", "terminated", "truncated"}.isdisjoint(reads)
        self.is_more = self._reward or self._flags or not env.flat

    def __call__(
        self, observed: list[Any], rewards: list[Any], over: list[tuple[int, bool, bool]]
    ) -> dict[NestedKey, Any]:
        single = self._single
        fields: dict[NestedKey, Any]
        fields = _stacked(self._env, observed)
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


def _with_first_reset(env: RawEnv) -> Callable[[Any], Any]:
    """The env's step; one that was never reset is reset first, as a single step does."""
    step, reset = env.step, env.reset

    def stepped(action: Any) -> Any:
        try:
            return step(action)
        except ResetNeeded:
            reset()
            return step(action)

    return stepped


def _stacked(env: RawEnv, rows: Sequence[Any]) -> dict[NestedKey, Tensor]:
    stacked = env.stack(rows)
    if all(isinstance(value, Tensor) for value in stacked.values()):
        return {key: value for key, value in stacked.items()}  # noqa: C416 - widens the key
    return leaves_of(new_tensordict(stacked, torch.Size((len(rows),)), None))


def _shaped(columns: Mapping[NestedKey, Tensor], shape: tuple[int, ...]) -> dict[NestedKey, Tensor]:
    return {key: value.reshape(*shape, *value.shape[1:]) for key, value in columns.items()}


def _merged(mask: Tensor, value: Tensor, before: Any) -> Tensor:
    if not isinstance(before, Tensor) or before.shape != value.shape:
        return value
    return torch.where(as_row_mask(mask, value, mask.ndim - 1), value, before)

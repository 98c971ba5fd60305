"""Count the steps of an episode, and end it after so many."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import torch
from tensordict import TensorDictBase
from torch import Tensor

from tdx.core.transforms import RunningTransform, TimeBehaviour
from tdx.core.transforms.chunk import Chunk, StepLimit, TimeForm, running_sum
from tdx.core.transforms.episodes import StoredGroup, stored_groups
from tdx.core.transforms.spec_edits import (
    DoneGroup,
    done_groups,
    refuse_taken,
    shape_in,
    with_entries,
)
from tdx.errors import ArgumentError
from tdx.keys import NestedKey, format_key, join_keys, split_key
from tdx.specs import Bounded, Categorical, Composite, TensorSpec
from tdx.tensordicts import read, write


class StepCounter(RunningTransform):
    """Write the number of steps since the reset, and truncate the episode at ``max_steps``.

    There is one counter beside each group of done flags, of their shape. A truncation by the
    env itself is kept, and an episode may be truncated and terminated at once.

    Args:
        max_steps: the step at which ``truncated`` is set; none to only count.
        truncated_key: the name of the flag that is set.
        step_count_key: the counter's name.
        update_done: whether ``done`` is set with ``truncated``.

    Raises:
        ArgumentError: ``max_steps`` is no integer of at least 1, or a key is no string.
        ChainError: the env already writes the counter's key (when its specs are computed).

    Example:
        >>> from tdx import GymEnv, StepCounter, TransformedEnv
        >>> env = TransformedEnv(GymEnv("Pendulum-v1"), StepCounter(max_steps=3))
        >>> rollout = env.rollout(100)
        >>> rollout["next", "step_count"].flatten(), rollout["next", "truncated"].flatten()
        (tensor([1, 2, 3]), tensor([False, False,  True]))
    """

    _is_verified = True

    time_behaviour = TimeBehaviour.CONTROL

    def __init__(
        self,
        max_steps: int | None = None,
        truncated_key: str | None = "truncated",
        step_count_key: str | None = "step_count",
        update_done: bool = True,
    ) -> None:
        if max_steps is not None and (
            isinstance(max_steps, bool) or not isinstance(max_steps, int) or max_steps < 1
        ):
            raise ArgumentError(
                f"max_steps must be an integer of at least 1, got {max_steps!r}",
                hint="for example max_steps=200, or None to only count",
            )
        self.max_steps = max_steps
        self.truncated_key = _name(truncated_key, "truncated_key", "truncated")
        self.step_count_key = _name(step_count_key, "step_count_key", "step_count")
        self.update_done = update_done
        super().__init__(in_keys=[], out_keys=[self.step_count_key])
        self._groups: tuple[DoneGroup, ...] = ()
        self._batch_dims = 0
        self._counters: tuple[tuple[None, NestedKey], ...] = ((None, self.step_count_key),)

    def _bind(self, input_spec: Composite, output_spec: Composite) -> None:
        self._groups = done_groups(output_spec["full_done_spec"])
        self._batch_dims = len(output_spec.shape)
        self._counters = tuple((None, group.beside(self.step_count_key)) for group in self._groups)
        self._set_keys([], [key for _, key in self._counters])

    @property
    def _written_keys(self) -> tuple[NestedKey, ...]:
        if self.max_steps is None:
            return super()._written_keys
        names = (self.truncated_key, "done") if self.update_done else (self.truncated_key,)
        flags = (group.beside(name) for group in self._groups for name in names)
        return (*super()._written_keys, *flags)

    def _state_pairs(self) -> tuple[tuple[None, NestedKey], ...]:
        return self._counters

    def _initial(self, key: NestedKey, tensordict_reset: TensorDictBase) -> Tensor:
        for group in self._groups:
            if group.beside(self.step_count_key) == key:
                shape = shape_in(tensordict_reset, group.shape, self._batch_dims)
                return torch.zeros(shape, dtype=torch.int64, device=group.device)
        rows, device = tensordict_reset.batch_size, tensordict_reset.device
        return torch.zeros(*rows, 1, dtype=torch.int64, device=device)

    def _advance(self, key: NestedKey, state: Tensor, value: Tensor | None) -> Tensor:
        # A later stage may have cast the state at the root to a narrower dtype.
        return (state if state.dtype is torch.int64 else state.to(torch.int64)) + 1

    def _step(self, tensordict: TensorDictBase, next_tensordict: TensorDictBase) -> TensorDictBase:
        next_tensordict = super()._step(tensordict, next_tensordict)
        if self.max_steps is not None:
            for group in self._groups:
                self._truncate(group, next_tensordict)
        return next_tensordict

    def _truncate(self, group: DoneGroup, next_tensordict: TensorDictBase) -> None:
        ended = read(next_tensordict, group.beside(self.step_count_key)) >= self.max_steps
        names = (self.truncated_key, "done") if self.update_done else (self.truncated_key,)
        for name in dict.fromkeys(names):
            flag = read(next_tensordict, group.beside(name))
            if flag is not None:
                write(next_tensordict, group.beside(name), flag | ended)
            elif name == self.truncated_key:
                write(next_tensordict, group.beside(name), ended.clone())

    def _reset(
        self, tensordict: TensorDictBase | None, tensordict_reset: TensorDictBase
    ) -> TensorDictBase:
        tensordict_reset = super()._reset(tensordict, tensordict_reset)
        if self.max_steps is not None:
            for group in self._groups:
                key = group.beside(self.truncated_key)
                if read(tensordict_reset, key) is None:
                    shape = shape_in(tensordict_reset, group.shape, self._batch_dims)
                    zeros = torch.zeros(shape, dtype=torch.bool, device=group.device)
                    write(tensordict_reset, key, zeros)
        return tensordict_reset

    def _time_form(self) -> TimeForm | None:
        form = super()._time_form()
        if form is None or self.max_steps is None:
            return form
        names = (self.truncated_key, "done") if self.update_done else (self.truncated_key,)
        flags = [group.beside(name) for group in self._groups for name in dict.fromkeys(names)]
        set_flags = tuple(flag for flag in flags if self._is_written(flag))
        known = {key for group in self._groups for key in group.keys}
        return replace(
            form,
            run=self._count_and_truncate,
            reads=tuple(flag for flag in set_flags if flag in known),
            writes=(*form.writes, *set_flags),
        )

    def _is_written(self, flag: NestedKey) -> bool:
        name, known = split_key(flag)[-1], {key for group in self._groups for key in group.keys}
        return flag in known or name == self.truncated_key

    def _step_limits(self) -> tuple[StepLimit, ...]:
        if self.max_steps is None or not self.update_done:
            return ()
        return tuple(
            StepLimit(self.max_steps, key, group.beside("done"), partial(self._last.get, key))
            for group in self._groups
            for key in (group.beside(self.step_count_key),)
            if group.has("done")
        )

    def _over_chunk(
        self, chunk: Chunk, key: NestedKey, state: Tensor, initial: Tensor, values: Tensor | None
    ) -> Tensor:
        state = state.to(torch.int64)
        one = torch.ones((), dtype=state.dtype, device=state.device)
        ones = one.expand(chunk.length, *state.shape)
        return running_sum(chunk, state, (key, key), initial, ones)

    def _count_and_truncate(self, chunk: Chunk) -> None:
        self._run_chunk(chunk)
        assert self.max_steps is not None
        for group in self._groups:
            ended = chunk.steps[group.beside(self.step_count_key)] >= self.max_steps
            names = (self.truncated_key, "done") if self.update_done else (self.truncated_key,)
            for name in dict.fromkeys(names):
                key = group.beside(name)
                flag = chunk.steps.get(key)
                if flag is not None:
                    chunk.steps[key] = flag | ended
                elif name == self.truncated_key:
                    chunk.steps[key] = ended.clone()
            key = group.beside(self.truncated_key)
            if chunk.times and key not in chunk.resets:
                chunk.resets[key] = ended.new_zeros((len(chunk.times), *ended.shape[1:]))

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Count the steps of a stored rollout, at the root and in ``next``, in place.

        With ``max_steps`` the flags of the last step of an episode that is so long are set too.
        Counts that are already stored stay, and so do the flags of their group.

        Args:
            tensordict: Stored rollout ``[*B, T]``, in time order along its last dim.

        Raises:
            ArgumentError: It has no dim of time, or an episode goes on after ``max_steps``.
            KeyNotFoundError: It has neither a done flag nor ``is_init`` to tell episodes apart.
        """
        if self._is_stored(tensordict):
            return tensordict
        for group in stored_groups(tensordict):
            key = group.beside(self.step_count_key)
            if read(tensordict, key) is None:
                self._count_stored(tensordict, group, key)
        return tensordict

    def _is_stored(self, tensordict: TensorDictBase) -> bool:
        """Return True if all counters are stored already."""
        return all(read(tensordict, key) is not None for key in self.out_keys)

    def _count_stored(self, tensordict: TensorDictBase, group: StoredGroup, key: NestedKey) -> None:
        starts, time = group.starts(tensordict), tensordict.ndim - 1
        steps = torch.arange(starts.shape[time], device=starts.device)
        steps = steps.reshape(-1, *[1] * (starts.ndim - time - 1)).expand(starts.shape)
        count = steps - torch.where(starts, steps, 0).cummax(time).values
        if self.max_steps is not None:
            self._truncate_stored(tensordict, group, starts, count + 1 >= self.max_steps)
        tensordict.set(key, count)
        tensordict.set(join_keys("next", key), count + 1)

    def _truncate_stored(
        self, tensordict: TensorDictBase, group: StoredGroup, starts: Tensor, ended: Tensor
    ) -> None:
        time = tensordict.ndim - 1
        later = starts.shape[time] - 1
        goes_on = ended.narrow(time, 0, later) & ~starts.narrow(time, 1, later)
        if bool(goes_on.any()):
            raise ArgumentError(
                f"a stored episode goes on after max_steps={self.max_steps}, where an env would "
                "have been reset",
                hint="count stored data with StepCounter() and no max_steps, or cut the episodes",
            ).at(transform="StepCounter")
        names = (self.truncated_key, "done") if self.update_done else (self.truncated_key,)
        for name in dict.fromkeys(names):
            flag_key = group.beside(name)
            flag = read(tensordict, join_keys("next", flag_key))
            if flag is not None:
                tensordict.set(join_keys("next", flag_key), flag | ended)
            elif name == self.truncated_key:
                tensordict.set(join_keys("next", flag_key), ended)
                tensordict.set(flag_key, torch.zeros_like(ended))

    def _counter_specs(self) -> dict[NestedKey, TensorSpec]:
        most = torch.iinfo(torch.int64).max
        return {
            group.beside(self.step_count_key): Bounded(
                0, most, shape=group.shape, dtype=torch.int64, device=group.device
            )
            for group in self._groups
        }

    def transform_observation_spec(self, observation_spec: Composite) -> Composite:
        """The observation spec with the counters."""
        entries = self._counter_specs()
        for key in entries:
            refuse_taken(observation_spec, key)
        return with_entries(observation_spec, entries)

    def transform_state_spec(self, state_spec: Composite) -> Composite:
        """The state spec with the counters, which a step reads."""
        return with_entries(state_spec, self._counter_specs())

    def transform_done_spec(self, done_spec: Composite) -> Composite:
        """The done flags' spec, with the truncated flag where it was not there."""
        if self.max_steps is None:
            return done_spec
        flags = {
            group.beside(self.truncated_key): Categorical(
                2, shape=group.shape, dtype=torch.bool, device=group.device
            )
            for group in self._groups
            if not group.has(self.truncated_key)
        }
        return with_entries(done_spec, flags)

    def __repr__(self) -> str:
        keys = ", ".join(repr(format_key(key)) for key in self.out_keys)
        return f"StepCounter(max_steps={self.max_steps}, keys=[{keys}])"


def _name(value: str | None, argument: str, default: str) -> str:
    if value is None:
        return default
    if not isinstance(value, str):
        raise ArgumentError(
            f"{argument} must be a string, got {value!r}",
            hint="nested counters get the name beside their done flags by themselves",
        )
    return value

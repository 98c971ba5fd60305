"""Truncate episodes at random lengths."""

from __future__ import annotations

import torch
from tensordict import TensorDictBase
from torch import Tensor

from tdx.core.counter_based import draw, new_streams
from tdx.core.envs.env_specs import done_groups
from tdx.core.transforms import EnvOnlyTransform, TimeBehavior
from tdx.core.transforms.scan import reset_rows
from tdx.core.transforms.spec_maps import missing_key_error, with_entries
from tdx.core.transforms.validation import check_integer
from tdx.foundation.errors import ArgumentError
from tdx.foundation.keys import NestedKey, normalize_key, sibling_key, split_key
from tdx.foundation.tensordicts import read, write
from tdx.specs import Categorical, Composite, TensorSpec


class RandomTruncationTransform(EnvOnlyTransform):
    """Truncate each episode at a random length, so that the envs of a batch end at different steps.

    The first episode of each env has a length from 1 to ``max_horizon``. Later ones have, with
    the given probability, a length from ``min_horizon`` to ``max_horizon``, else ``max_horizon``.
    It reads the steps that a ``StepCounter`` before it counts.

    Args:
        min_horizon: Smallest random length of later episodes.
        max_horizon: Largest length.
        prob: Probability of a random length.
        first_episode_prob: The same for the second episode of each env. ``None``: ``prob``.
        step_count_key: Counter to read. A string is the name of the counter in every group of
            done flags, a tuple its key.
        truncated_key: Flag to set: a name next to the counter, or a key.
        done_key: Flag to set too: a name next to the counter, or a key.

    Raises:
        ArgumentError: A horizon is not an integer of at least 1, ``min_horizon`` is above
            ``max_horizon``, or a probability is outside [0, 1].
        KeyNotFoundError: No earlier stage counts steps (when its specs are computed).
        ChainError: The transform is applied to stored data.

    Example:
        >>> from tdx import GymEnv, RandomTruncationTransform, StepCounter, TransformedEnv
        >>> env = TransformedEnv(GymEnv("Pendulum-v1"), StepCounter())
        >>> env = env.append_transform(RandomTruncationTransform(5, 5))
        >>> len(env.rollout(100)) <= 5
        True
    """

    why_not_exported = "it draws random numbers"
    _is_verified = True
    STORED_ERR = "it ends the episodes of an env, and stored data has none"

    time_behavior = TimeBehavior.CONTROL
    episode_memory = ("_horizons", "_is_first", "_streams")
    _horizons: dict[NestedKey, Tensor]
    _is_first: dict[NestedKey, Tensor]
    _streams: dict[NestedKey, Tensor]

    def __init__(
        self,
        min_horizon: int,
        max_horizon: int,
        prob: float = 0.0,
        first_episode_prob: float | None = None,
        *,
        step_count_key: NestedKey = "step_count",
        truncated_key: NestedKey = "truncated",
        done_key: NestedKey = "done",
    ) -> None:
        super().__init__()
        self.min_horizon = check_integer(min_horizon, "min_horizon", 1, "for example 50")
        self.max_horizon = check_integer(max_horizon, "max_horizon", 1, "for example 200")
        if min_horizon > max_horizon:
            raise ArgumentError(
                f"min_horizon ({min_horizon}) is above max_horizon ({max_horizon})",
                hint="swap the two",
            )
        self.prob = _check_probability(prob, "prob")
        later = prob if first_episode_prob is None else first_episode_prob
        self.first_episode_prob = _check_probability(later, "first_episode_prob")
        self.step_count_key = normalize_key(step_count_key)
        self.truncated_key = normalize_key(truncated_key)
        self.done_key = normalize_key(done_key)
        self._counters: dict[NestedKey, TensorSpec] = {}

    def _flag_keys(self, count_key: NestedKey) -> tuple[NestedKey, NestedKey]:
        """Return the keys of the truncated and the done flag of a counter."""
        keys = self.truncated_key, self.done_key
        first, second = (
            sibling_key(count_key, key) if isinstance(key, str) else key for key in keys
        )
        return first, second

    @property
    def written_keys(self) -> tuple[NestedKey, ...]:
        return tuple(key for count_key in self._counters for key in self._flag_keys(count_key))

    # Data

    def _step(self, tensordict: TensorDictBase, next_tensordict: TensorDictBase) -> TensorDictBase:
        for count_key in self._counters:
            horizon = self._horizons.get(count_key)
            if horizon is None:
                continue
            ended = self._entry(next_tensordict, count_key) >= horizon
            for key in self._flag_keys(count_key):
                flag = read(next_tensordict, key)
                write(next_tensordict, key, ended.clone() if flag is None else flag | ended)
        return next_tensordict

    def _reset(
        self, tensordict: TensorDictBase | None, tensordict_reset: TensorDictBase
    ) -> TensorDictBase:
        for count_key in self._counters:
            count = self._entry(tensordict_reset, count_key)
            key, _ = self._flag_keys(count_key)
            if read(tensordict_reset, key) is None:
                write(tensordict_reset, key, torch.zeros_like(count, dtype=torch.bool))
            held = self._horizons.get(count_key)
            if held is None or held.shape != count.shape:
                # Drawn on the host, so that they are the same on every device.
                drawn = torch.randint(1, self.max_horizon + 1, count.shape)
                self._horizons[count_key] = drawn.to(count.device, non_blocking=True)
                self._is_first[count_key] = torch.ones_like(count, dtype=torch.bool)
                self._streams.pop(count_key, None)
                self._streams_of(count_key, count)
            else:
                rows = reset_rows(tensordict, count_key, count)
                if rows is None:
                    # New streams, so that `torch.manual_seed` before it decides on the lengths.
                    self._streams.pop(count_key, None)
                    rows = torch.ones_like(count, dtype=torch.bool)
                self._draw_later(count_key, rows.expand(count.shape))
        return tensordict_reset

    def _streams_of(self, count_key: NestedKey, like: Tensor) -> Tensor | None:
        """Return the streams of the rows of a tensor; ``None`` if no later length is random."""
        if not self.prob and not self.first_episode_prob:
            return None
        if count_key not in self._streams:
            self._streams[count_key] = new_streams(like.shape, like.device)
        return self._streams[count_key]

    def _draw_later(self, count_key: NestedKey, rows: Tensor) -> None:
        """Draw the lengths of the episodes that begin in some rows, which are not their first."""
        horizons, first = self._horizons[count_key], self._is_first[count_key]
        later = torch.full_like(horizons, self.max_horizon)
        streams = self._streams_of(count_key, rows)
        if streams is not None:
            # An accelerator resets by mask after every step, mostly no rows. A row draws from its
            # own stream, so that it gets the same lengths there as on the host.
            (place, chance), self._streams[count_key] = draw(streams, 2, rows)
            drawn = self.min_horizon + (place * (self.max_horizon - self.min_horizon + 1)).long()
            prob = torch.where(first, self.first_episode_prob, self.prob)
            later = torch.where(chance < prob, drawn, later)
        self._horizons[count_key] = torch.where(rows, later, horizons)
        self._is_first[count_key] = first & ~rows

    # Specs

    def _bind(self, input_spec: Composite, output_spec: Composite) -> None:
        observations = output_spec["full_observation_spec"]
        self._counters = {}
        for raw_key, spec in observations.items(True, True):
            key = normalize_key(raw_key)
            name = isinstance(self.step_count_key, str) and split_key(key)[-1]
            if self.step_count_key in (key, name):
                self._counters[key] = spec
        if not self._counters:
            known = list(map(normalize_key, observations.keys(True, True)))
            error = missing_key_error(self.step_count_key, known, "the env at this stage")
            error.hint = f"put a StepCounter() before RandomTruncationTransform; {error.hint}"
            raise error
        flags = output_spec["full_done_spec"]
        groups = {group.reset_key for group in done_groups(flags)}
        for key in self._counters:
            _, done = self._flag_keys(key)
            if sibling_key(done, "_reset") not in groups:
                # Flags in a group of their own would not reset the env.
                known = list(map(normalize_key, flags.keys(True, True)))
                advice = "set step_count_key to a counter in the group of a flag"
                raise missing_key_error(done, known, "the done spec", advice)

    def transform_done_spec(self, done_spec: Composite) -> Composite:
        """Return the spec of the done flags with the flags that the env lacks."""
        missing = {
            key: Categorical(2, shape=spec.shape, dtype=torch.bool, device=spec.device)
            for count_key, spec in self._counters.items()
            for key in self._flag_keys(count_key)
            if done_spec.get(key, None) is None
        }
        return with_entries(done_spec, missing) if missing else done_spec

    def __repr__(self) -> str:
        horizons = f"{self.min_horizon}, {self.max_horizon}, prob={self.prob:g}"
        return f"RandomTruncationTransform({horizons})"


def _check_probability(value: float, name: str) -> float:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not is_number or not 0 <= value <= 1:
        raise ArgumentError(
            f"{name} must be from 0 to 1, got {value!r}", hint=f"such as {name}=0.1"
        )
    return float(value)

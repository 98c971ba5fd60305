"""``tdx.watch``: records stage statistics, states and times during training."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any, Self

import torch
from torch import Tensor

from tdx.core.chain import chain_stages
from tdx.core.tracing import StepTrace, TraceChecker, list_passages
from tdx.core.tracing.passages import PassageId
from tdx.core.transforms.statistics import RunningNorm
from tdx.foundation.errors import ArgumentError
from tdx.foundation.keys import NestedKey, format_key
from tdx.foundation.patches import Patches
from tdx.inspection.value_stats import NumberSummary, RunningStats, count_outside
from tdx.inspection.watch_records import KeyRecord, Sink, StateRecord, WatchRecord, sink_of
from tdx.specs import TensorSpec
from tdx.stacks import open_stack

_MAX_VALUES = 16
"""Largest state whose numbers are recorded one by one; a larger one has its mean."""
_LAST_STEPS = 64
"""Number of steps of a rollout whose values are recorded."""


class WatchWarning(UserWarning):
    """A record of ``tdx.watch`` could not be written."""


class watch:  # noqa: N801 - it is used like a function
    """Record what each stage of an env does, in a sample of the steps of a block.

    Every ``every`` steps, one step is traced: mean, standard deviation, range, share of NaN and of
    values outside the spec for each key that a stage writes, the time of each stage, and the state
    of each stage, such as the statistics of a normalizer. A key that a stage has changed once is
    recorded in all later samples too, also where its value passes through, with ``changed`` as 1 or
    0. All other steps only count. A rollout of
    a tdx env, which runs stages on chunks, and a step of a TorchRL env are recorded by their
    results instead, without times.

    Values, randomness and state do not change. A sample that would make the cost exceed
    ``max_share`` of the time in the block is left out, and so is one that cannot be written: the
    first of these is named in a warning, and the block goes on.

    Args:
        env: Env of tdx, Gymnasium, Stable-Baselines3 or TorchRL, as it is stepped in the block.
        every: Number of steps between samples.
        to: File for JSON lines, which ``tdx show`` plots; a ``SummaryWriter`` of TensorBoard; a
            ``RecordingStream`` of Rerun, which gets the values of each stage as well; or a run of
            W&B, or any object with ``log(values, step=...)``.
        max_share: Largest share of the time that recording may take, from 0 to 1. The first sample
            is always taken.

    Raises:
        ArgumentError: ``every`` is less than 1, ``max_share`` is not within 0 to 1, or ``to`` is of
            another type.

    Example:
        >>> import tempfile, tdx
        >>> norm = tdx.VecNorm(in_keys=["observation"])
        >>> env = tdx.TransformedEnv(tdx.GymEnv("Pendulum-v1"), norm)
        >>> file = tempfile.mkdtemp() + "/watch.jsonl"
        >>> with tdx.watch(env, every=50, to=file, max_share=1) as watched:
        ...     for _ in range(4):
        ...         _ = env.rollout(100)
        >>> watched.steps, watched.samples
        (400, 4)
    """

    def __init__(
        self,
        env: Any,
        *,
        every: int = 1000,
        to: Any = "watch.jsonl",
        max_share: float = 0.01,
    ) -> None:
        if every < 1:
            raise ArgumentError(f"every={every} is less than 1", hint="use 1 for every step")
        if not 0 <= max_share <= 1:
            raise ArgumentError(f"max_share={max_share} is not within 0 to 1", hint="such as 0.01")
        self.steps = self.samples = self.skipped = 0
        self._env, self._every, self._max_share = env, every, max_share
        self._stack = open_stack(env)
        self._sink: Sink = sink_of(to)
        self._next = every
        self._started = self._spent = 0.0
        self._is_inside = self._has_warned = False
        self._checker: TraceChecker | None = None
        self._patches = Patches()
        self._names: list[str] = []
        self._changing: dict[PassageId, set[NestedKey]] = {}

    def __enter__(self) -> Self:
        stages = self._stack.stages
        self._names = [stage.name for stage in stages]
        self._sink.begin(self._stack.name, [stage.call for stage in stages])
        env, patches = self._env, self._patches
        patches.put(env, "step", self._hook_step(env.step))
        if self._is_tdx:
            patches.put(env, "rollout", self._hook_rollout(env.rollout))
            patches.put(env, "iter_rollout", self._hook_iter_rollout(env.iter_rollout))
        self._started = time.perf_counter()
        return self

    def __exit__(self, *raised: object) -> None:
        self._patches.undo()
        try:
            self._sink.end()
        except OSError as error:
            self._warn(str(error))

    @property
    def _is_tdx(self) -> bool:
        return self._stack.kind == "tdx"

    @property
    def share(self) -> float:
        """Share of the time in the block that recording has taken so far."""
        return self._spent / max(time.perf_counter() - self._started, 1e-9)

    def _hook_step(self, step: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any, **kwargs: Any) -> Any:
            if self._is_inside:
                return step(*args, **kwargs)
            self.steps += 1
            if self.steps < self._next or not self._may_sample():
                return step(*args, **kwargs)
            return self._trace(args, kwargs)

        return counted

    def _hook_rollout(self, rollout: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any, **kwargs: Any) -> Any:
            with self._inside():
                result = rollout(*args, **kwargs)
            self._count_results(result)
            return result

        return counted

    def _hook_iter_rollout(self, iterate: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any, **kwargs: Any) -> Iterator[Any]:
            chunks = iterate(*args, **kwargs)
            while True:
                with self._inside():
                    chunk = next(chunks, None)
                if chunk is None:
                    return
                self._count_results(chunk)
                yield chunk

        return counted

    @contextmanager
    def _inside(self) -> Iterator[None]:
        """Count the steps in a block as those of one call, which counts them itself."""
        before, self._is_inside = self._is_inside, True
        try:
            yield
        finally:
            self._is_inside = before

    def _may_sample(self) -> bool:
        """Return True if a sample is due; one that is too expensive is skipped."""
        self._next = self.steps + self._every
        if (self.samples or self.skipped) and self.share > self._max_share:
            self.skipped += 1
            return False
        return True

    def _trace(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Make one step and record its trace."""
        traces: list[StepTrace] = []
        begin = time.perf_counter()
        with self._inside(), self._stack.attach(traces.append):
            result = self._env.step(*args, **kwargs)
        values: dict[tuple[str, str], Tensor] = {}
        records: list[KeyRecord] = []
        if traces:
            records = list(self._records_of(traces[-1]))
            values = {
                (stage.place, format_key(key)): version.value
                for stage in traces[-1].stages
                for key, version in stage.written.items()
                if isinstance(version.value, Tensor)
            }
        elif "next" in result:
            records = list(self._records_of_output(result))
        self._write(records, begin, values)
        return result

    def _count_results(self, result: Any) -> None:
        if not hasattr(result, "batch_size") or not result.batch_size:
            return
        self.steps += int(result.batch_size[-1])
        if self.steps >= self._next and self._may_sample():
            begin = time.perf_counter()
            self._write(list(self._records_of_output(result[..., -_LAST_STEPS:])), begin)

    def _write(
        self,
        keys: list[KeyRecord],
        begin: float,
        values: Mapping[tuple[str, str], Tensor] = MappingProxyType({}),
    ) -> None:
        elapsed = time.perf_counter() - self._started
        record = WatchRecord(self.steps, elapsed, tuple(keys), tuple(self._states()), values)
        try:
            self._sink.write(record)
            self.samples += 1
        except OSError as error:
            self.skipped += 1
            self._warn(f"the sample at step {self.steps} is not recorded: {error}")
        self._spent += time.perf_counter() - begin

    def _warn(self, text: str) -> None:
        """Warn once, rather than stop a training because its record cannot be written."""
        if not self._has_warned:
            self._has_warned = True
            warnings.warn(f"{text}; the training goes on", WatchWarning, stacklevel=2)

    def _records_of(self, trace: StepTrace) -> Iterator[KeyRecord]:
        if self._checker is None:
            self._checker = TraceChecker(self._stack)
        for passage in list_passages(trace):
            stage = passage.stage
            keys = self._changing.setdefault(passage.identity, set())
            keys.update(stage.written)
            declared = self._checker.specs_for(stage, trace.tensordict) if keys else {}
            changes = stage.kind in ("stage", "kept")
            for key, version in passage.entries.items():
                if key in keys:
                    changed = key in passage.changed if changes else None
                    leaf = declared.get(key)
                    yield _record(stage.place, key, version.value, leaf, stage.time_ns, changed)

    def _records_of_output(self, last: Any) -> Iterator[KeyRecord]:
        """Yield the statistics of the TensorDict that a step or a rollout returned."""
        keys = (*last["next"].keys(True, True), *self._env.action_keys)
        for key in keys:
            value = last.get(key, None) if key in self._env.action_keys else last["next"].get(key)
            if isinstance(value, Tensor):
                yield _record("output", key, value, None, None)

    def _states(self) -> Iterator[StateRecord]:
        # Location and scale of running statistics, rather than their sums.
        affine: dict[int, Mapping[str, Tensor]] = {}
        for index, stage in enumerate(chain_stages(self._env) if self._is_tdx else ()):
            if isinstance(stage, RunningNorm):
                affine[index] = {
                    f"{name} of {format_key(key)}": value
                    for key, _, loc, scale in stage.iter_affine()
                    for name, value in (("loc", loc), ("scale", scale))
                }
        for index, state in self._stack.state().items():
            named = affine.get(index, state)
            for name, value in named.items():
                if not value.is_complex() and value.numel():
                    numbers = value.detach().double().reshape(-1)
                    shown = numbers if len(numbers) <= _MAX_VALUES else numbers.mean(0, True)
                    place = f"{index} {self._names[index]}"
                    yield StateRecord(place, name, tuple(shown.tolist()))


def _record(
    place: str,
    key: NestedKey,
    value: object,
    leaf: TensorSpec | None,
    time_ns: int | None,
    changed: bool | None = None,
) -> KeyRecord:
    stats = RunningStats(key, leaf)
    stats.add(NumberSummary(value), None if leaf is None else count_outside(leaf, value))
    result = stats.result("", None)
    std = None
    if isinstance(value, Tensor) and not value.is_complex() and value.numel():
        numbers = value.detach().double()
        std = torch.std(numbers, correction=0).item()
    nan = result.nans / result.elements if result.elements else 0.0
    return KeyRecord(
        stage=place,
        key=format_key(key),
        mean=result.mean,
        std=std,
        minimum=result.minimum,
        maximum=result.maximum,
        nan=nan,
        outside=result.outside,
        microseconds=None if time_ns is None else time_ns / 1000,
        changed=changed,
    )

"""Run ``env.rollout`` and ``env.iter_rollout``: by a plan if that is safe, else step by step.

A planned rollout in the order of its calls:

0. ``env.rollout`` completes its arguments (:mod:`tdx.core.envs.rollout`) and calls
   :func:`rollout` here.
1. :func:`rollout` resets the env (:func:`_first_input`), and :func:`_chunks` splits the steps into
   chunks, each as large as memory allows.
2. :func:`prepare_run` gets the plan (:mod:`tdx.core.plan.build`): which stages are *immediate*
   because the policy or the env needs their output in the next step, and which are *deferred*. It
   returns a :class:`PlannedRun`, or ``None`` if a plan is not possible; then an ``EagerRun``
   (:mod:`tdx.core.envs.eager_run`) makes the same chunks with ``env.step``. For an env with worker
   processes, a ``WorkerRun`` (:mod:`tdx.core.planned.workers`) has them make the chunks.
3. :meth:`PlannedRun.chunk` makes one chunk:

   a. The collector (:mod:`tdx.core.planned.collectors`; for Gymnasium
      ``tdx.envs.gym.collector``) steps the env before its chain. It takes actions from their
      source (:mod:`tdx.core.planned.actions`), runs the immediate stages after each step
      (:mod:`tdx.core.planned.immediate`) and resets the rows that are done. The result is one
      *column* ``[T, *B, ...]`` per key.
   b. :func:`run_deferred` (:mod:`tdx.core.planned.stages`) runs each deferred stage once over the
      whole :class:`~tdx.core.transforms.kernels.Chunk`: its ``make_chunk_kernel``, which for a
      :class:`~tdx.RewardClipping` is its ``_apply_transform`` applied to the reward column.
   c. :func:`assemble` (:mod:`tdx.core.planned.columns`) makes a TensorDict ``[*B, T]`` of the
      columns. The root is not computed: it is ``next``, shifted by one step.

4. The root of the next chunk follows from the last step (:func:`last_root`). Scans such as sums and
   counters read their state from it. At the end, :func:`join_chunks` concatenates the chunks.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tensordict import TensorDictBase
from torch import Tensor

from tdx.core.chain import flatten_chain, stage_modes
from tdx.core.envs.eager_run import (
    EagerRun,
    RolloutChunk,
    StepLayout,
    mark_truncated,
    policy_device,
    reset_done_rows,
)
from tdx.core.envs.env_base import EnvBase
from tdx.core.envs.failures import with_step
from tdx.core.envs.policies import ActionSequence, first_nan, nan_error
from tdx.core.envs.rollout import RolloutRequest
from tdx.core.meter import (
    ASSEMBLY,
    CHUNKS,
    LAYOUT_CHECK,
    LOOP,
    SETUP,
    AnyFunction,
    Meter,
    Part,
    base_parts,
)
from tdx.core.plan.build import PlanCache, Program, program_of
from tdx.core.planned.actions import (
    DrawProbe,
    RandomActions,
    action_source,
    cache_rng_sharing,
    random_policy,
)
from tdx.core.planned.collectors import (
    Collector,
    CollectorSetup,
    RawRows,
    Stop,
    TensorDictCollector,
)
from tdx.core.planned.columns import (
    WHOLE_BYTES,
    assemble,
    chunk_steps_for,
    flatten,
    join_chunks,
    last_root,
    steps_within,
)
from tdx.core.planned.immediate import ImmediateStages
from tdx.core.planned.keyed_policy import KeyedPolicy, keyed_policy
from tdx.core.planned.stages import run_deferred
from tdx.core.planned.workers import ChunkSource, run_in_workers
from tdx.core.transformed_env import TransformedEnv
from tdx.core.transforms.validation import check_integer
from tdx.foundation.errors import ArgumentError
from tdx.foundation.keys import NestedKey


def rollout(
    env: EnvBase,
    max_steps: int,
    request: RolloutRequest,
    *,
    auto_reset: bool,
    return_contiguous: bool,
    tensordict: TensorDictBase | None,
    set_truncated: bool,
) -> TensorDictBase:
    """Return a whole rollout, ``[*B, T]``; see :meth:`~tdx.core.envs.EnvBase.rollout`."""
    check_integer(max_steps, "max_steps", 1, "pass a positive integer")
    start = _first_input(env, request, auto_reset, tensordict)
    steps_per_chunk = steps_within(WHOLE_BYTES, env)
    parts: list[TensorDictBase | list[TensorDictBase]] = []
    for chunk in _chunks(env, request, start, max_steps, steps_per_chunk):
        if chunk.error is not None:
            raise chunk.error
        parts.append(chunk.data)
    result = _measured(env, ASSEMBLY, join_chunks)(parts, start.ndim, return_contiguous)
    is_full = result.shape[start.ndim] == max_steps
    return mark_truncated(env, result) if set_truncated and is_full else result


def iter_rollout(
    env: EnvBase,
    max_steps: int | None,
    request: RolloutRequest,
    *,
    chunk_steps: int | None,
    chunk_bytes: int | None,
    auto_reset: bool,
    tensordict: TensorDictBase | None,
) -> Iterator[TensorDictBase]:
    """Return an iterator over the chunks of a rollout, each ``[*B, t]``.

    See :meth:`~tdx.core.envs.EnvBase.iter_rollout`. Arguments are checked before the first chunk
    is requested.
    """
    if max_steps is not None:
        check_integer(max_steps, "max_steps", 1, "pass a positive integer")
    size = chunk_steps_for(env, chunk_steps, chunk_bytes)
    return _iter_chunks(env, max_steps, request, size, auto_reset, tensordict)


def _iter_chunks(
    env: EnvBase,
    max_steps: int | None,
    request: RolloutRequest,
    size: int,
    auto_reset: bool,
    tensordict: TensorDictBase | None,
) -> Iterator[TensorDictBase]:
    start = _first_input(env, request, auto_reset, tensordict)
    join = _measured(env, ASSEMBLY, _take_data)
    layout, step_count = StepLayout(), 0
    find_mismatch = _measured(env, LAYOUT_CHECK, layout.find_mismatch)
    for chunk in _chunks(env, request, start, max_steps, size):
        mismatch = find_mismatch(chunk.data) if isinstance(chunk.data, list) else None
        if mismatch is not None:
            chunk.length, error = mismatch
            chunk.data = chunk.data[: chunk.length]
            chunk.error = error.at(step=step_count + chunk.length)
        step_count += chunk.length
        if chunk.length:
            yield join(chunk, start.ndim)
        if chunk.error is not None:
            raise chunk.error


def _measured(env: EnvBase, part: Part, function: AnyFunction) -> AnyFunction:
    meter = env.meter
    return function if meter is None else meter.timed(part, function)


def _take_data(chunk: RolloutChunk, dim: int) -> TensorDictBase:
    """Return the steps of a chunk as one TensorDict, and release the chunk's own reference."""
    whole = join_chunks([chunk.data], dim, True)
    chunk.data = []
    return whole


def _first_input(
    env: EnvBase, request: RolloutRequest, auto_reset: bool, tensordict: TensorDictBase | None
) -> TensorDictBase:
    """Return the input of the first step, ``[*B]``: the given TensorDict, or that of a reset."""
    if isinstance(request.policy, ActionSequence):
        request.policy.rewind()
    start = None if tensordict is None else tensordict.clone(recurse=False)
    if start is not None and "next" in start.keys():
        # The result of an earlier step is not an input.
        del start["next"]
    if auto_reset:
        return env.reset(start)
    if start is None:
        raise ArgumentError(
            "auto_reset is off and no tensordict is given to start from",
            hint="pass tensordict=env.reset()",
        )
    return start


def _chunks(
    env: EnvBase, request: RolloutRequest, start: TensorDictBase, max_steps: int | None, size: int
) -> Iterator[RolloutChunk]:
    """Iterate over the chunks of a rollout, each of at most ``size`` steps."""
    meter = env.meter
    prepare = prepare_run if meter is None else meter.timed(SETUP, prepare_run)
    run = prepare(env, request, start) or EagerRun(env, request)
    step_count = 0
    while max_steps is None or step_count < max_steps:
        length = size if max_steps is None else min(size, max_steps - step_count)
        chunk = run.chunk(start, length)
        step_count += chunk.length
        is_last = chunk.stopped or chunk.error is not None or step_count == max_steps
        yield chunk
        if is_last or chunk.following is None:
            return
        start = chunk.following()
        del chunk
        if not request.breaks:
            start = reset_done_rows(env, start, step_count)


def prepare_run(env: EnvBase, request: RolloutRequest, start: TensorDictBase) -> ChunkSource | None:
    """Return a planned run from a root ``[*B]``, or ``None`` if it has to run step by step."""
    if request.callback is not None or request.break_when_all_done:
        return None
    policy: Any = request.policy
    if request.auto_cast_to_device and policy_device(policy) not in (None, env.device):
        return None
    reads = None
    if policy is not None and not isinstance(policy, ActionSequence):
        policy = keyed_policy(policy, env)
        if policy is None:
            return None
        reads = policy.reads
    program = cached_program(env, reads)
    if program.plan.executor == "eager" or not _is_plannable(policy, env, program):
        return None
    run = PlannedRun(env, program, policy, "any" if request.break_when_any_done else "never")
    if not run.accepts(start):
        return None
    # Worker processes run whole pieces of a chunk apart, so none knows that a row of another one is
    # done and the rollout has to stop.
    if request.breaks or program.plan.processes is None:
        return run
    return run_in_workers(env, program, run.source, run, start)


def cached_program(env: EnvBase, reads: tuple[NestedKey, ...] | None) -> Program:
    """Return the plan for the keys that a policy reads, cached until the env's specs change."""
    cache: PlanCache = env.env_specs.cache.setdefault("programs", PlanCache())
    level = env
    while isinstance(level, TransformedEnv) and level.planned:
        level = level.base_env
    key = (reads, level.planned, stage_modes(flatten_chain(env)[1]))
    program: Program | None = cache.get(key)
    if program is None:
        program = cache[key] = program_of(env, reads)
    return program


def _is_plannable(policy: Any, env: EnvBase, program: Program) -> bool:
    """Return True if the policy writes all actions, and nothing that anything else reads."""
    if not isinstance(policy, KeyedPolicy):
        return True
    known = {version.key for version in program.plan.versions}
    fed_back = {key for forms in program.stages for key in forms.root}
    fed_back.update(program.base.step_reads or ())
    return (
        not known.intersection(policy.writes)
        and not fed_back.intersection(policy.writes)
        and set(env.action_keys) <= set(policy.writes)
    )


class PlannedRun:
    """Steps an env by a plan, chunk after chunk, with random actions unless there is a policy.

    ``stop``: ``any`` to stop at the first done flag, ``never`` to reset done rows.
    """

    def __init__(
        self,
        env: EnvBase,
        program: Program,
        policy: KeyedPolicy | ActionSequence | None,
        stop: Stop,
        first_step: int = 0,
    ) -> None:
        self._env, self._program, self._stop = env, program, stop
        self._rewards = frozenset(env.reward_keys)
        # Set while it is not known whether the env draws from the generator of the actions too.
        self._probe: DrawProbe | None = None
        if policy is None:
            self._probe, policy = random_policy(env, program)
        self.source = action_source(env, program, policy)
        self._reads = policy.reads if isinstance(policy, KeyedPolicy) else ()
        self._raw: RawRows | None = program.base.raw_rows if program.plan.rows == "raw" else None
        self._step_count = first_step
        self._collect, self._run_deferred = self._collector().collect, run_deferred
        self._assemble, self._last_root = assemble, last_root
        meter = env.meter
        if meter is not None:
            self._measure(meter)

    def _measure(self, meter: Meter) -> None:
        self._collect = meter.timed(LOOP, self._collect)
        self._run_deferred = meter.timed(
            CHUNKS, self._run_deferred, lambda program, chunk, *_: chunk.length
        )
        self._assemble = meter.timed(ASSEMBLY, self._assemble)
        self._last_root = meter.timed(ASSEMBLY, self._last_root)
        self.source.measure(meter)

    def _collector(self) -> Collector:
        """Return the loop that steps the env before its chain."""
        env, program = self._env, self._program
        base, stages = program.base, program.stages
        immediate = [stage for stage in stages if stage.index in program.immediate]
        deferred = [stage for stage in stages if stage.index not in program.immediate]
        is_raw = self._raw is not None
        in_step = ImmediateStages(
            immediate,
            base.batch_size,
            base.env_specs.main_device,
            is_raw,
            self._reads,
            deferred,
            env.env_specs.output_keys(),
        )
        # With TensorDicts, immediate stages have set their flags already, or had them overruled.
        limiting = stages if is_raw else deferred
        limits = [limit for forms in limiting for limit in forms.stage.step_limits()]
        if self._raw is None:
            return TensorDictCollector(base, limits, in_step)
        fused, meter = program.fused, env.meter
        kernel, part = (None, None) if fused is None else (fused.kernel, fused.part)
        # A base with a part of its own for the conversion measures the env inside.
        is_measured = meter is not None and base.step_part is None
        parts = base_parts(base.display_name) if is_measured else None
        return self._raw.collector(CollectorSetup(limits, in_step, kernel, part, meter, parts))

    def accepts(self, start: TensorDictBase) -> bool:
        """Return True if the plan can start from a root, ``[*B]``."""
        if self._raw is not None and not self._raw.is_ready:
            return False
        leaves = flatten(start)
        if not all(isinstance(value, Tensor) for value in leaves.values()):
            return False
        if not all(key in leaves for key in self._reads):
            return False
        final = {version.key for version in self._program.plan.versions if version.final}
        # An entry that no step writes any longer would be read again in every step.
        return all(
            key not in leaves or key in final
            for forms in self._program.stages
            for key in forms.root
        )

    def chunk(self, start: TensorDictBase, length: int) -> RolloutChunk:
        """Make up to ``length`` steps from a root ``[*B]``."""
        first = flatten(start)
        if self._probe is not None:
            self._probe.begin()
        collected = self._collect(first, self.source, length, self._stop)
        if self._probe is not None and collected.length:
            cache_rng_sharing(self._program.base, not self._probe.is_exclusive())
        # Once per chunk; an eager rollout checks each step. Random actions follow their spec.
        for key in () if isinstance(self.source, RandomActions) else self._env.action_keys:
            actions = collected.inputs.get(key)
            bad = None if actions is None else first_nan(actions)
            if bad is not None:
                collected.cut(bad, nan_error(key))
        if collected.length:
            if self._raw is not None:
                last = {key: value[-1] for key, value in collected.steps.items()}
                self._raw.after_chunk({**last, **collected.last_images})
            self._run_deferred(self._program, collected, self._env.batch_size)
        self._step_count += collected.length
        error = None if collected.error is None else with_step(collected.error, self._step_count)
        if not collected.length:
            return RolloutChunk([], 0, error=error)
        return RolloutChunk(
            self._assemble(collected, start, self._rewards),
            collected.length,
            collected.stopped,
            error,
            lambda: self._last_root(collected, start, self._rewards),
        )

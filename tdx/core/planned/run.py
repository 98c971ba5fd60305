"""One planned rollout: runs chunk after chunk, with the state carried between them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from tensordict import TensorDictBase
from torch import Tensor

from tdx.core.chain_specs import flatten_chain
from tdx.core.envs.env_base import EnvBase
from tdx.core.envs.policies import ActionCheck, ActionSequence, first_nan, nan_error
from tdx.core.meter import ASSEMBLY, CHUNKS, DRAWING, LOOP, Meter, Part, base_parts, meter_of
from tdx.core.plan.build import Program, program_of
from tdx.core.planned.actions import (
    ActionSource,
    DrawProbe,
    GivenActions,
    InversePath,
    PolicyActions,
    RandomActions,
    remember_generator_use,
    uses_global_generator,
)
from tdx.core.planned.collector import CollectedSteps, Collector, CollectorSetup, RawRows, Stop
from tdx.core.planned.columns import assemble, flatten, last_root
from tdx.core.planned.deferred import CompiledStages, compile_stages, run_deferred
from tdx.core.planned.immediate_program import ImmediateProgram
from tdx.core.planned.keyed_policy import KeyedPolicy, keyed_policy
from tdx.core.planned.tensordict_collector import TensorDictCollector
from tdx.core.transformed_env import TransformedEnv
from tdx.errors import TdxError
from tdx.keys import NestedKey


@dataclass(slots=True)
class RolloutChunk:
    """Consecutive steps of a rollout.

    Args:
        data: One block ``[*B, T]``; a list of steps ``[*B]`` if they cannot be one block.
        length: Number of steps, ``T``.
        stopped: True if a done flag ended the rollout.
        error: What was raised after the last step.
        following: Returns the root of the next step, ``[*B]``, as ``step_mdp`` does.
    """

    data: TensorDictBase | list[TensorDictBase]
    length: int
    stopped: bool = False
    error: Exception | None = None
    following: Callable[[], TensorDictBase] | None = None


class PlannedRun:
    """Steps an env by a plan, chunk after chunk.

    Args:
        env: The env with its chain.
        program: Its plan.
        policy: The policy with its keys, or a sequence of actions. ``None``: random actions.
        stop: ``any`` to stop at the first done flag, ``never`` to reset done rows.
    """

    def __init__(
        self,
        env: EnvBase,
        program: Program,
        policy: KeyedPolicy | ActionSequence | None,
        stop: Stop,
    ) -> None:
        self._env, self._program, self._stop = env, program, stop
        self._rewards = frozenset(env.reward_keys)
        self._probe: DrawProbe | None = None
        if policy is None:
            policy = self._random_policy(env, program)
        self._inputs = _action_source(env, program, policy)
        self._reads = policy.reads if isinstance(policy, KeyedPolicy) else ()
        raw: RawRows | None = program.base._raw_rows if program.plan.rows == "raw" else None
        self._raw = raw if program.fused is None else None
        self._collector = _collector(env, program, self._reads, raw)
        self._compiled = _compiled(env, program)
        self._step_count = 0
        self._collect, self._run_deferred = self._collector.collect, run_deferred
        self._assemble, self._last_root = assemble, last_root
        meter = meter_of(env)
        if meter is not None:
            self._measure(meter)

    def _measure(self, meter: Meter) -> None:
        self._collect = meter.timed(LOOP, self._collect)
        self._run_deferred = meter.timed(
            CHUNKS, self._run_deferred, lambda program, collected, *_: collected.length
        )
        self._assemble = meter.timed(ASSEMBLY, self._assemble)
        self._last_root = meter.timed(ASSEMBLY, self._last_root)
        self._inputs.measure(meter)
        self._compiled = {index: group.measured(meter) for index, group in self._compiled.items()}

    def _random_policy(self, env: EnvBase, program: Program) -> KeyedPolicy | None:
        """Return a policy that draws one action per step, if the order of draws may matter."""
        shares_generator = uses_global_generator(program.base)
        if shares_generator is False and all(
            planned.chunk_form is not None for planned in program.stages
        ):
            return None
        draw = DrawProbe(env.full_action_spec.rand)
        self._probe = draw if shares_generator is None else None
        return KeyedPolicy((), tuple(env.action_keys), lambda root: flatten(draw()), DRAWING.name)

    def accepts(self, start: TensorDictBase) -> bool:
        """Return True if the plan can start from a root, ``[*B]``."""
        leaves = flatten(start)
        if not all(isinstance(value, Tensor) for value in leaves.values()):
            return False
        if not all(key in leaves for key in self._reads):
            return False
        final = {version.key for version in self._program.plan.versions if version.final}
        # An entry that no step writes any longer would be read again in every step.
        return all(
            key not in leaves or key in final
            for planned in self._program.stages
            for key in planned.root
        )

    def chunk(self, start: TensorDictBase, length: int) -> RolloutChunk:
        """Make up to ``length`` steps from a root ``[*B]``."""
        first = flatten(start)
        if self._probe is not None:
            self._probe.begin()
        collected = self._collect(first, self._inputs, length, self._stop)
        if self._probe is not None and collected.length:
            remember_generator_use(self._program.base, not self._probe.was_alone())
        self._cut_at_nan(collected)
        if collected.length and self._raw is not None:
            self._raw.after_chunk({key: value[-1] for key, value in collected.steps.items()})
        if not collected.length:
            return RolloutChunk([], 0, error=self._with_step(collected.error, self._step_count))
        size = self._env.batch_size
        chunk = self._run_deferred(self._program, collected, first, size, self._compiled)
        if not collected.length:
            return RolloutChunk([], 0, error=self._with_step(collected.error, self._step_count))
        error = self._with_step(collected.error, self._step_count + collected.length)
        self._step_count += collected.length
        inputs, rewards = collected.inputs, self._rewards
        data = self._assemble(chunk, inputs, start, rewards)
        return RolloutChunk(
            data,
            collected.length,
            collected.stopped,
            error,
            lambda: self._last_root(chunk, inputs, start, rewards),
        )

    def _cut_at_nan(self, collected: CollectedSteps) -> None:
        """Remove the steps from the first action on that is not a number."""
        if isinstance(self._inputs, RandomActions):
            return
        for key in self._env.action_keys:
            actions = collected.inputs.get(key)
            bad = None if actions is None else first_nan(actions)
            if bad is not None:
                collected.cut(bad, nan_error(key))

    def _with_step(self, error: Exception | None, step: int) -> Exception | None:
        if isinstance(error, TdxError):
            return error.at(step=step)
        if error is not None:
            error.add_note(f"tdx: raised at step {step} of the rollout")
        return error


def prepare_run(env: EnvBase, policy: Any, start: TensorDictBase, stop: Stop) -> PlannedRun | None:
    """Return a planned run of an env and a policy, or ``None`` if it has to run eagerly.

    Args:
        env: The env with its chain.
        policy: The ``policy`` argument of ``env.rollout``.
        start: Root before the first step, ``[*B]``.
        stop: ``any`` to stop at the first done flag, ``never`` to reset done rows.
    """
    keyed: KeyedPolicy | ActionSequence | None
    if policy is None or isinstance(policy, ActionSequence):
        keyed, reads = policy, None
    else:
        keyed = keyed_policy(policy, env)
        if keyed is None:
            return None
        reads = keyed.reads
    program = cached_program(env, reads)
    if program.plan.executor == "eager" or not _is_plannable(keyed, env, program):
        return None
    run = PlannedRun(env, program, keyed, stop)
    return run if run.accepts(start) else None


class PlanCache(dict[Any, Any]):
    """Plans of an env; a copy of the env starts with an empty cache."""

    def __reduce__(self) -> tuple[Any, ...]:
        return PlanCache, ()

    def __deepcopy__(self, memo: dict[int, Any]) -> PlanCache:
        return PlanCache()


def cached_program(env: EnvBase, reads: tuple[NestedKey, ...] | None) -> Program:
    """Return the plan for the keys that a policy reads, cached until the env's specs change."""
    cache: PlanCache = env._specs.cache.setdefault("programs", PlanCache())
    modes = tuple(
        (stage.training, getattr(stage, "_frozen", None), stage._missing_tolerance)
        for stage in flatten_chain(env)[1]
    )
    key = (reads, _allows_plan(env), modes)
    program: Program | None = cache.get(key)
    if program is None:
        program = cache[key] = program_of(env, reads)
    return program


def _allows_plan(env: EnvBase) -> bool:
    """Return False if this env or an env inside has ``planned=False``."""
    while isinstance(env, TransformedEnv) and env.planned:
        env = env.base_env
    return env.planned


def _is_plannable(policy: Any, env: EnvBase, program: Program) -> bool:
    """Return True if the policy writes all actions, and nothing that anything else reads."""
    if not isinstance(policy, KeyedPolicy):
        return True
    known = {version.key for version in program.plan.versions}
    fed_back = {key for planned in program.stages for key in planned.root}
    fed_back.update(program.base._step_reads or ())
    return (
        not known.intersection(policy.writes)
        and not fed_back.intersection(policy.writes)
        and set(env.action_keys) <= set(policy.writes)
    )


def _action_source(
    env: EnvBase, program: Program, policy: KeyedPolicy | ActionSequence | None
) -> ActionSource:
    handed_out = env._chain._exposed_keys if isinstance(env, TransformedEnv) else ()
    stages = [planned.stage for planned in program.stages if planned.stage.invertible]
    inverse = InversePath(env, program.base, stages, handed_out)
    if policy is None:
        return RandomActions(env, inverse, partial(remember_generator_use, program.base, True))
    if isinstance(policy, ActionSequence):
        return GivenActions(policy, env, inverse)
    return PolicyActions(policy, env, inverse)


def _compiled(env: EnvBase, program: Program) -> dict[int, CompiledStages]:
    backend = env.compiler if isinstance(env, TransformedEnv) else None
    if backend is None:
        return {}
    cache: PlanCache = env._specs.cache.setdefault("compiled", PlanCache())
    key = (backend, program.immediate)
    if key not in cache:
        fused = () if program.fused is None else program.fused.indices
        excluded = program.immediate.union(fused)
        deferred = [planned for planned in program.stages if planned.index not in excluded]
        cache[key] = compile_stages(deferred, backend)
    return cache[key]


def _collector(
    env: EnvBase, program: Program, reads: tuple[NestedKey, ...], raw: RawRows | None
) -> Collector:
    base, stages = program.base, program.stages
    immediate = [planned for planned in stages if planned.index in program.immediate]
    deferred = [planned for planned in stages if planned.index not in program.immediate]
    program_of_step = ImmediateProgram(
        immediate, base.batch_size, base.device, raw is not None, reads, deferred
    )
    # With TensorDicts, immediate stages have set their flags already, or had them overruled.
    limiting = stages if raw is not None else deferred
    limits = [limit for planned in limiting for limit in planned.stage._step_limits()]
    check = ActionCheck(env)
    if raw is None:
        return TensorDictCollector(base, limits, program_of_step, check)
    kernel, kernel_part = None, None
    if program.fused is not None:
        kernel, indices = program.fused.kernel, program.fused.indices
        name = " + ".join(stages[index].name for index in indices)
        kernel_part = Part("stage", indices[0], name, "forward", indices[-1])
    meter = meter_of(env)
    return raw.collector(
        CollectorSetup(limits, program_of_step, check, kernel, kernel_part, meter, base_parts(base))
    )

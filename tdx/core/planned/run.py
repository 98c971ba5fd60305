"""One planned rollout: from chunk to chunk, with what is carried from one to the next."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from tensordict import TensorDictBase
from torch import Tensor

from tdx.core.envs import EnvBase
from tdx.core.envs.policies import ActionCheck, ActionSequence, first_nan, nan_error
from tdx.core.meter import ASSEMBLY, CHUNKS, DRAWING, LOOP, Meter, Part, base_parts, meter_of
from tdx.core.plan.build import Program, program_of
from tdx.core.plan.forms import flattened
from tdx.core.planned.assemble import assembled, last_root
from tdx.core.planned.collected import Collected, Collector, Stop
from tdx.core.planned.columns import leaves_of
from tdx.core.planned.compiled import CompiledStages, compiled_groups
from tdx.core.planned.deferred import run_chain
from tdx.core.planned.generator import Probe, leaves_generator_alone, remember
from tdx.core.planned.gym_rows import GymRows
from tdx.core.planned.inputs import ClosedLoop, GivenActions, Inputs, RandomActions, WayIn
from tdx.core.planned.now_program import NowProgram
from tdx.core.planned.policies import KeyedPolicy, keyed_policy
from tdx.core.planned.tensordict_rows import TensorDictRows
from tdx.core.transformed_env import TransformedEnv
from tdx.envs.gym.raw_rows import RawEnv
from tdx.errors import TdxError
from tdx.keys import NestedKey


@dataclass(slots=True)
class Stretch:
    """A stretch of a rollout.

    Args:
        data: its steps as one block ``[*B, T]``, or each ``[*B]`` where they differ too much.
        length: how many.
        stopped: whether an end stopped it.
        error: what was raised after its last step, if anything was.
        following: gives the root of the step after, ``[*B]``, as ``step_mdp`` makes it.
    """

    data: TensorDictBase | list[TensorDictBase]
    length: int
    stopped: bool = False
    error: Exception | None = None
    following: Callable[[], TensorDictBase] | None = None


class PlannedRun:
    """Steps an env by a plan, chunk after chunk.

    Args:
        env: the env, with its chain.
        program: its plan.
        policy: a policy by its keys, a sequence of actions, or none for random ones.
        stop: whether to stop at the first end.
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
        self._probe: Probe | None = None
        if policy is None:
            policy = self._drawn_in_turn(env, program)
        self._inputs = _inputs(env, program, policy)
        reads = policy.reads if isinstance(policy, KeyedPolicy) else ()
        self._reads = reads
        self._is_raw = program.plan.rows == "raw" and program.fused is None
        self._collector = _collector(env, program, reads)
        self._compiled = _compiled(env, program)
        self._made = 0
        self._collect, self._run_chain = self._collector.collect, run_chain
        self._assembled, self._last_root = assembled, last_root
        meter = meter_of(env)
        if meter is not None:
            self._measure(meter)

    def _measure(self, meter: Meter) -> None:
        self._collect = meter.timed(LOOP, self._collect)
        self._run_chain = meter.timed(
            CHUNKS, self._run_chain, lambda program, collected, *_: collected.length
        )
        self._assembled = meter.timed(ASSEMBLY, self._assembled)
        self._last_root = meter.timed(ASSEMBLY, self._last_root)
        self._inputs.measure(meter)
        self._compiled = {index: group.measured(meter) for index, group in self._compiled.items()}

    def _drawn_in_turn(self, env: EnvBase, program: Program) -> KeyedPolicy | None:
        """Random actions drawn in the step that they are for, where the order might matter."""
        spec = env.full_action_spec
        alone = leaves_generator_alone(program.base)
        if alone and all(form.form is not None for form in program.forms):
            return None
        draw = Probe(spec.rand)
        self._probe = draw if alone is None else None
        keys = tuple(env.action_keys)
        return KeyedPolicy((), keys, lambda root: leaves_of(draw()), DRAWING.name)

    def fits(self, start: TensorDictBase) -> bool:
        """Whether the root before the first step is one that the plan can go on from."""
        leaves = leaves_of(start)
        if not all(isinstance(value, Tensor) for value in leaves.values()):
            return False
        if not all(key in leaves for key in self._reads):
            return False
        for form in self._program.forms:
            # An entry that no step writes any longer would be read back again and again.
            for key in form.root:
                if key in leaves and not self._comes_out(key):
                    return False
        return True

    def _comes_out(self, key: NestedKey) -> bool:
        return any(version.final and version.key == key for version in self._program.plan.versions)

    def chunk(self, start: TensorDictBase, length: int) -> Stretch:
        """Make up to ``length`` steps from a root ``[*B]``."""
        first = leaves_of(start)
        if self._probe is not None:
            self._probe.begin()
        collected = self._collect(first, self._inputs, length, self._stop)
        if self._probe is not None and collected.length:
            remember(self._program.base, self._probe.was_alone())
        self._check_numbers(collected)
        if collected.length and self._is_raw:
            self._program.base._stepped_raw(
                {key: value[-1] for key, value in collected.steps.items()}
            )
        if not collected.length:
            return Stretch([], 0, error=self._told(collected.error, self._made))
        size = self._env.batch_size
        chunk = self._run_chain(self._program, collected, first, size, self._compiled)
        if not collected.length:
            return Stretch([], 0, error=self._told(collected.error, self._made))
        error = self._told(collected.error, self._made + collected.length)
        self._made += collected.length
        inputs, rewards = collected.inputs, self._rewards
        data = self._assembled(chunk, inputs, start, rewards)
        return Stretch(
            data,
            collected.length,
            collected.stopped,
            error,
            lambda: self._last_root(chunk, inputs, start, rewards),
        )

    def _check_numbers(self, collected: Collected) -> None:
        """Cut off what came of the first action that is not a number."""
        if isinstance(self._inputs, RandomActions):
            return
        for key in self._env.action_keys:
            actions = collected.inputs.get(key)
            bad = None if actions is None else first_nan(actions)
            if bad is not None:
                collected.cut(bad, nan_error(key))

    def _told(self, error: Exception | None, step: int) -> Exception | None:
        """The error, with the number of the step at which it was raised."""
        if isinstance(error, TdxError):
            return error.at(step=step)
        if error is not None:
            error.add_note(f"tdx: raised at step {step} of the rollout")
        return error


def prepared(env: EnvBase, policy: Any, start: TensorDictBase, stop: Stop) -> PlannedRun | None:
    """A planned run of this env and policy, or ``None`` where the plan is to run eagerly.

    Args:
        env: the env, with its chain.
        policy: as ``env.rollout`` takes it.
        start: the root before the first step, ``[*B]``.
        stop: whether to stop at the first end.
    """
    known: KeyedPolicy | ActionSequence | None
    if policy is None or isinstance(policy, ActionSequence):
        known, reads = policy, None
    else:
        known = keyed_policy(policy, env)
        if known is None:
            return None
        reads = known.reads
    program = cached_program(env, reads)
    if program.plan.executor == "eager" or not _suits(known, env, program):
        return None
    run = PlannedRun(env, program, known, stop)
    return run if run.fits(start) else None


class PlanCache(dict[Any, Any]):
    """The plans of an env; a copy of the env makes its own."""

    def __reduce__(self) -> tuple[Any, ...]:
        return PlanCache, ()

    def __deepcopy__(self, memo: dict[int, Any]) -> PlanCache:
        return PlanCache()


def cached_program(env: EnvBase, reads: tuple[NestedKey, ...] | None) -> Program:
    """The plan for these reads, made once for as long as the env's specs hold."""
    cache: PlanCache = env._key_cache.setdefault("programs", PlanCache())
    modes = tuple(
        (stage.training, getattr(stage, "_frozen", None), stage._missing_tolerance)
        for stage in flattened(env)[1]
    )
    key = (reads, _may_be_planned(env), modes)
    program: Program | None = cache.get(key)
    if program is None:
        program = cache[key] = program_of(env, reads)
    return program


def _may_be_planned(env: EnvBase) -> bool:
    """Whether neither this env nor one inside is told to run step by step."""
    while isinstance(env, TransformedEnv) and env.planned:
        env = env.base_env
    return env.planned


def _suits(policy: Any, env: EnvBase, program: Program) -> bool:
    """Whether what the policy reads is there, and what it writes is read by nothing else."""
    if not isinstance(policy, KeyedPolicy):
        return True
    versions = program.plan.versions
    known = {version.key for version in versions}
    back = {key for form in program.forms for key in form.root} | set(
        program.base._step_reads or ()
    )
    return (
        not known.intersection(policy.writes)
        and not back.intersection(policy.writes)
        and set(env.action_keys) <= set(policy.writes)
    )


def _inputs(env: EnvBase, program: Program, policy: KeyedPolicy | ActionSequence | None) -> Inputs:
    handed_out = env._chain._exposed_keys if isinstance(env, TransformedEnv) else ()
    stages = [form.stage for form in program.forms if form.stage.invertible]
    way_in = WayIn(env, program.base, stages, handed_out)
    if policy is None:
        return RandomActions(env, way_in, partial(remember, program.base, False))
    if isinstance(policy, ActionSequence):
        return GivenActions(policy, env, way_in)
    return ClosedLoop(policy, env, way_in)


def _compiled(env: EnvBase, program: Program) -> dict[int, CompiledStages]:
    backend = env.compiler if isinstance(env, TransformedEnv) else None
    if backend is None:
        return {}
    cache: PlanCache = env._key_cache.setdefault("compiled", PlanCache())
    key = (backend, program.now)
    if key not in cache:
        arrived = () if program.fused is None else program.fused.indices
        taken = program.now.union(arrived)
        waiting = [form for form in program.forms if form.index not in taken]
        cache[key] = compiled_groups(waiting, backend)
    return cache[key]


def _collector(env: EnvBase, program: Program, reads: tuple[NestedKey, ...]) -> Collector:
    raw = program.plan.rows == "raw"
    now = [form for form in program.forms if form.index in program.now]
    base = program.base
    later = [form for form in program.forms if form.index not in program.now]
    ran = NowProgram(now, base.batch_size, base.device, raw, reads, later)
    # Those that run along have set their flags by then, or had them overruled.
    waiting = [form for form in program.forms if raw or form.index not in program.now]
    limits = [limit for form in waiting for limit in form.stage._step_limits()]
    check = ActionCheck(env)
    if raw and base._raw_envs is not None:
        envs = _raw_envs(program, meter_of(env))
        return GymRows(envs, base.batch_size, limits, ran, check)
    return TensorDictRows(base, limits, ran, check)


def _raw_envs(program: Program, meter: Meter | None) -> tuple[RawEnv, ...]:
    """The Gymnasium envs, with what maps their images as they arrive."""
    envs: tuple[RawEnv, ...] = program.base._raw_envs or ()
    if meter is not None:
        step, reset = base_parts(program.base)
        envs = tuple(
            replace(env, step=meter.timed(step, env.step), reset=meter.timed(reset, env.reset))
            for env in envs
        )
    if program.fused is None:
        return envs
    kernel: Any = program.fused.kernel
    shape = kernel.form.out_shape
    if meter is not None:
        indices = program.fused.indices
        name = " + ".join(program.forms[index].name for index in indices)
        kernel = meter.timed(Part("stage", indices[0], name, "forward", indices[-1]), kernel)
    return tuple(env.mapping(kernel, shape) for env in envs)

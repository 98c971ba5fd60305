"""Reasons why a rollout has to run step by step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tdx.core.capabilities import PlannedStage
from tdx.core.envs.env_base import EnvBase
from tdx.core.transformed_env import TransformedEnv
from tdx.core.transforms import TimeBehaviour, Transform
from tdx.keys import NestedKey, format_key, normalize_key, split_key
from tdx.specs import Composite, TensorSpec
from tdx.specs.non_tensor import NonTensor


def why_eager(env: EnvBase, base: EnvBase, stages: Sequence[PlannedStage]) -> str:
    """Return the first reason why a plan is not possible; empty if it is possible.

    Args:
        env: The env with its chain.
        base: The env before all chains.
        stages: The stages of all chains.
    """
    return next(_reasons(env, base, stages), "")


def _reasons(env: EnvBase, base: EnvBase, stages: Sequence[PlannedStage]) -> Iterator[str]:
    yield from _env_reasons(env, base)
    for planned in stages:
        yield from _stage_reasons(planned)
    yield from _read_reasons(base, stages)
    yield from _inverse_reasons(env, base, stages)
    yield from _feedback_reasons(base, stages)
    yield from _end_reasons(env, base, stages)
    yield from _value_reasons(env)


def _env_reasons(env: EnvBase, base: EnvBase) -> Iterator[str]:
    outer = env
    while isinstance(env, TransformedEnv):
        if not env.planned:
            yield "planned=False"
        if type(env) is not TransformedEnv:
            yield f"{type(env).__name__} may override how it steps"
        if env is not outer and env._chain._exposed_keys:
            yield "an env inside writes entries for the policy when it maps an action"
        env = env.base_env
    if not base.planned:
        yield "planned=False"
    if base._step_reads is None:
        yield f"{type(base).__name__} may read any entry in its steps"


def _stage_reasons(planned: PlannedStage) -> Iterator[str]:
    where = f"stage {planned.index} ({planned.name})"
    if planned.stage._changes_batch and planned.chunk_form is None:
        yield f"{where} changes the batch size or the device"
    if planned.chunk_form is None and planned.sees_input:
        yield f"{where} overrides _step or _reset, which may read any entry"
    if _inverse_is_timed(planned.stage):
        yield f"the inverse of {where} depends on time"


def _inverse_is_timed(stage: Transform) -> bool:
    return stage.invertible and stage.time_behaviour is not TimeBehaviour.POINTWISE


def _read_reasons(base: EnvBase, stages: Sequence[PlannedStage]) -> Iterator[str]:
    """Every key that a stage reads has to be an existing tensor, not a group."""
    present = {
        normalize_key(key) for part in base.output_spec.values() for key in part.keys(True, True)
    }
    for planned in stages:
        for key in planned.reads or ():
            if key not in present:
                where = f"stage {planned.index} ({planned.name})"
                yield f"{where} reads {format_key(key)}, which is not a tensor"
        present.difference_update(planned.drops)
        present.update(planned.writes or ())


def _inverse_reasons(env: EnvBase, base: EnvBase, stages: Sequence[PlannedStage]) -> Iterator[str]:
    """The inverse of the chain has to map actions and nothing else."""
    actions = set(base.action_keys)
    for planned in stages:
        if not planned.stage.invertible:
            continue
        inner, outer = planned.stage.in_keys_inv, planned.stage.out_keys_inv
        where = f"stage {planned.index} ({planned.name})"
        if not actions.issuperset(inner):
            other = next(key for key in inner if key not in actions)
            yield f"the inverse of {where} maps {format_key(other)}, which is not an action"
        actions = actions.difference(inner).union(outer)
    if actions != set(env.action_keys):
        yield "the actions that the env takes are not those that the chain declares"


def _feedback_reasons(base: EnvBase, stages: Sequence[PlannedStage]) -> Iterator[str]:
    """Entries read from a step's input have to be those of the output before it."""
    for planned in stages:
        for key in planned.root:
            for later in stages[planned.index + 1 :]:
                if key in (later.writes or ()):
                    yield (
                        f"stage {later.index} ({later.name}) rewrites {format_key(key)}, which "
                        f"stage {planned.index} ({planned.name}) reads back in the next step"
                    )
    for key in base._step_reads or ():
        for planned in stages:
            if key in (planned.writes or ()) or key in planned.drops:
                yield (
                    f"stage {planned.index} ({planned.name}) changes {format_key(key)}, which "
                    f"{type(base).__name__} reads back in the next step"
                )


def _end_reasons(env: EnvBase, base: EnvBase, stages: Sequence[PlannedStage]) -> Iterator[str]:
    """Only flags of the env and step limits may end an episode."""
    for group in env.done_keys_groups:
        ends = [key for key in group if split_key(key)[-1] == "done"]
        if not ends:
            yield f"{', '.join(map(format_key, group))}: none of them is a done flag"
        yield from _flag_reasons(ends, base, stages)


def _flag_reasons(
    ends: Sequence[NestedKey], base: EnvBase, stages: Sequence[PlannedStage]
) -> Iterator[str]:
    for key in ends:
        if key not in base.done_keys:
            yield f"the env does not write the flag {format_key(key)}"
        for planned in stages:
            counted = {limit.done_key for limit in planned.stage._step_limits()}
            if key in (planned.writes or ()) and (planned.chunk_form is None or key not in counted):
                yield f"stage {planned.index} ({planned.name}) decides on {format_key(key)}"


def _value_reasons(env: EnvBase) -> Iterator[str]:
    for spec in (env.input_spec, env.output_spec):
        for key, leaf in spec.items(True, True):
            if not _is_plain(leaf):
                yield f"{format_key(key)} holds objects, or tensors of several shapes"
        for part in spec.values(True):
            if isinstance(part, Composite) and type(part) is not Composite:
                yield "the envs of the batch have different specs"


def _is_plain(leaf: TensorSpec) -> bool:
    if isinstance(leaf, NonTensor) or leaf.dtype is None:
        return False
    return all(size >= 0 for size in leaf.shape)

"""The specs after each stage of a chain, computed without a step."""

from __future__ import annotations

from dataclasses import dataclass

from tdx.core.envs import EnvBase
from tdx.core.transformed_env import TransformedEnv
from tdx.core.transforms import Compose, Transform
from tdx.specs import Composite


@dataclass(frozen=True, slots=True)
class StageSpecs:
    """The specs right after one stage.

    Args:
        index: the stage's place in the chain, from 0; -1 for the env before the chain.
        name: the transform's class name; the env's for -1.
        transform: the transform; ``None`` for -1.
        input_spec: what the outside gives at this place.
        output_spec: what comes out at this place.
    """

    index: int
    name: str
    transform: Transform | None
    input_spec: Composite
    output_spec: Composite


def chain_stages(env: EnvBase) -> tuple[Transform, ...]:
    """Return the stages of an env's whole chain, those of nested transformed envs first.

    Example:
        >>> from tdx import GymEnv, RewardSum, StepCounter, TransformedEnv
        >>> inner = TransformedEnv(GymEnv("Pendulum-v1"), StepCounter())
        >>> [type(stage).__name__ for stage in chain_stages(TransformedEnv(inner, RewardSum()))]
        ['StepCounter', 'RewardSum']
    """
    if not isinstance(env, TransformedEnv):
        return ()
    return (*chain_stages(env.base_env), *env.stages)


def stage_count(env: EnvBase) -> int:
    """Return the number of stages in an env's whole chain, with nested transformed envs."""
    return len(chain_stages(env))


def stage_specs(env: EnvBase) -> list[StageSpecs]:
    """The env's own specs, and those after each stage of its chain.

    Nested transformed envs are walked from the inside out, with the indices running on.

    Raises:
        TdxError: a stage cannot take the specs before it; the error names the stage.

    Example:
        >>> from tdx import GymEnv, StepCounter, TransformedEnv
        >>> env = TransformedEnv(GymEnv("Pendulum-v1"), StepCounter())
        >>> [stage.name for stage in stage_specs(env)]
        ['GymEnv', 'StepCounter']
    """
    if not isinstance(env, TransformedEnv):
        return [StageSpecs(-1, type(env).__name__, None, env.input_spec, env.output_spec)]
    result = stage_specs(env.base_env)
    chain = env.transform
    compose = chain if isinstance(chain, Compose) else None
    for stage in env.stages:
        before = result[-1]
        try:
            specs = stage._transform_specs(before.input_spec, before.output_spec)
        except Exception as error:
            if compose is None:
                raise
            raise compose._located(error, stage, "the computation of its specs") from None
        result.append(StageSpecs(before.index + 1, type(stage).__name__, stage, *specs))
    return result
